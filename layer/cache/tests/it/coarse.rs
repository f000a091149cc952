//! An origin whose clock ticks once a second, and a test with it: what changes twice within a tick shows no change.

use tombolo_core::fs::{Attr, Timestamp};
use tombolo_layer_cache::Contract;

use crate::world::{Origin, pattern};

fn ticked(attr: Attr) -> Attr {
    let ticked = |time: Timestamp| Timestamp { nanos: 0, ..time };
    Attr { mtime: ticked(attr.mtime), ctime: ticked(attr.ctime), ..attr }
}

#[test]
fn a_second_change_within_a_tick_is_seen_too() {
    let (origin, dir) = (Origin::new().with_clock(ticked), tempfile::tempdir().expect("a directory"));
    let cached = origin.cached(dir.path(), Contract::CloseToOpen);
    for round in 0..200 {
        origin.direct.put("file", &pattern(1000, round));
        assert_eq!(cached.session.get("file").expect("read"), pattern(1000, round), "round {round}");
    }
}
