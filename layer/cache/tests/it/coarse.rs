//! An origin with a clock resolution of one second, at which two changes within a tick look like one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tombolo_core::fs::{Attr, Timestamp};
use tombolo_layer_cache::{Contract, Options};

use crate::world::{Origin, grow_old, pattern};

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
        assert_eq!(cached.contents("file"), pattern(1000, round), "round {round}");
    }
}

/// Returns the time set by a test.
fn set_clock() -> SystemTime {
    SystemTime::now() - Duration::from_secs(1 << 20) + Duration::from_secs(AHEAD_SECS.load(Ordering::Relaxed))
}

static AHEAD_SECS: AtomicU64 = AtomicU64::new(1 << 20);

#[test]
fn a_clock_that_jumps_hides_no_change() {
    let (origin, dir) = (Origin::new().with_clock(ticked), tempfile::tempdir().expect("a directory"));
    let options = Options { contract: Contract::CloseToOpen, wall_clock: set_clock, ..Options::default() };
    let cached = origin.cached_with(dir.path(), options);
    for round in 0..200_u8 {
        // Correct, hours ahead, hours behind.
        let ahead = [0, 5 * 3600, -5 * 3600][usize::from(round / 20 % 3)];
        AHEAD_SECS.store((1_u64 << 20).saturating_add_signed(ahead), Ordering::Relaxed);
        origin.direct.put("file", &pattern(1000, round));
        assert!(cached.contents("file") == pattern(1000, round), "round {round}");
    }
}

/// Ensures that old files stay cached, although this host's clock places their changes in the future.
#[test]
fn clock_set_back_causes_no_refetch_of_old_files() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.put("file", &pattern(1000, 1));
    grow_old();
    origin.direct.put("later", b"");
    let behind = || SystemTime::now() - Duration::from_secs(5 * 3600);
    let options = Options { contract: Contract::CloseToOpen, wall_clock: behind, ..Options::default() };
    for life in 0..2 {
        let cached = origin.cached_with(dir.path(), options);
        // Its times show the origin's clock.
        cached.contents("later");
        let reads = origin.asked("read");
        for _ in 0..3 {
            assert_eq!(cached.contents("file"), pattern(1000, 1));
        }
        assert!(origin.asked("read") - reads <= 1 - life, "life {life}");
    }
}
