//! An origin whose clock ticks once a second, and a test with it: what changes twice within a tick shows no change.

use std::sync::Arc;

use tombolo_core::fs::{
    Attr, Client, Entry, Export, File, FileSystem, Name, NodeId, OpenFlags, Opened, PersistentHandles,
    Profile, Timestamp,
};
use tombolo_core::{Answer, Ctx, Result, forward};
use tombolo_layer_cache::Contract;

use crate::world::{Origin, pattern};

struct Coarse<T: ?Sized>(Arc<T>);

fn coarse(attr: Attr) -> Attr {
    let ticked = |time: Timestamp| Timestamp { nanos: 0, ..time };
    Attr { mtime: ticked(attr.mtime), ctime: ticked(attr.ctime), ..attr }
}

impl Export for Coarse<dyn Export> {
    fn attach(&self, client: &Client) -> Result<Arc<dyn FileSystem>> {
        Ok(Arc::new(Coarse(self.0.attach(client)?)))
    }
}

impl FileSystem for Coarse<dyn FileSystem> {
    fn profile(&self) -> Profile {
        self.0.profile()
    }

    fn lookup(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Entry> {
        self.0.lookup(cx, parent, name).map(|entry| Entry { attr: coarse(entry.attr), ..entry })
    }

    fn getattr(&self, cx: &Ctx, node: NodeId, file: Option<File>) -> Answer<Attr> {
        self.0.getattr(cx, node, file).map(coarse)
    }

    fn open(&self, cx: &Ctx, node: NodeId, flags: OpenFlags) -> Answer<Opened> {
        self.0.open(cx, node, flags).map(|opened| Opened { attr: opened.attr.map(coarse), ..opened })
    }

    forward!(to self.0; setattr access readlink create create_unnamed mkdir symlink mknod link unlink rmdir
        rename flush fsync read write readdir statfs syncfs forget release);

    fn persistent_handles(&self) -> Option<&dyn PersistentHandles> {
        self.0.persistent_handles()
    }
}

#[test]
fn a_second_change_within_a_tick_is_seen_too() {
    let (mut origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.export = Arc::new(Coarse(origin.export));
    let cached = origin.cached(dir.path(), Contract::CloseToOpen);
    for round in 0..200 {
        origin.direct.put("file", &pattern(1000, round));
        assert_eq!(cached.session.get("file").expect("read"), pattern(1000, round), "round {round}");
    }
}
