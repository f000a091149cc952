//! Progress of deferred changes.

use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tombolo::{Watermarks, tombolo_wait, tombolo_watermarks};
use tombolo_back_memory::Memory;
use tombolo_core::fs::Volume;
use tombolo_layer_cache::Contract;
use tombolo_layer_cache::store::{OriginIdentity, Store, StoreOptions};
use tombolo_layer_write_back::{Options, WriteBackExport};
use tombolo_test_support::Session;

use crate::common::{Opened, Served, Serving, sure};

const ON_DISK: u32 = 1;
const AT_ORIGIN: u32 = 2;

impl Opened {
    fn watermarks(&self) -> Result<Watermarks, i32> {
        let mut out = Watermarks::default();
        // SAFETY: an open tree, and memory for the watermarks.
        sure(unsafe { tombolo_watermarks(self.0, &mut out) }, out)
    }

    fn wait(&self, place: u32, timeout_ms: i32) -> i32 {
        // SAFETY: an open tree.
        unsafe { tombolo_wait(self.0, place, timeout_ms) }
    }
}

/// Returns a write-back export that defers changes until told to send them.
fn kept_back(dir: &TempDir) -> Arc<WriteBackExport> {
    let identity = OriginIdentity { location: "memory:".into(), volume: Volume::default() };
    let store = Store::open(&dir.path().join("cache"), &identity, StoreOptions::default()).expect("a store");
    let options = tombolo_layer_cache::Options { contract: Contract::Exclusive, ..Default::default() };
    let cache = tombolo_layer_cache::over(&Memory::default(), store, options).expect("a cache");
    let never = Duration::from_secs(3600);
    let options = Options { idle: never, delay_max: never, ..Options::default() };
    let kept = tombolo_layer_write_back::over(&cache, &dir.path().join("write-back"), options);
    Arc::new(kept.expect("a journal"))
}

#[test]
fn program_reads_watermarks_and_waits_for_them() {
    let dir = TempDir::new().unwrap();
    let export = kept_back(&dir);
    let served = Serving::new(export.clone());
    let tree = Opened::at(&served.socket(), c"src").expect("a tree");
    assert_eq!(tree.watermarks(), Ok(Watermarks::default()));
    let session = Session::attach(&*export);
    session.mkdir("dir").expect("mkdir");
    assert_eq!(tree.wait(ON_DISK, 60_000), 0);
    let marks = Watermarks { change: 1, on_disk: 1, at_origin: 0 };
    assert_eq!(tree.watermarks(), Ok(marks));
    for timeout_ms in [0, 30] {
        assert_eq!(tree.wait(AT_ORIGIN, timeout_ms), -libc::ETIMEDOUT);
    }
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| tree.wait(AT_ORIGIN, -1));
        export.flush().expect("a flush");
        assert_eq!(waiting.join().expect("no panic"), 0);
    });
    assert_eq!(tree.watermarks(), Ok(Watermarks { at_origin: 1, ..marks }));
    assert_eq!(tree.wait(3, 0), -libc::EINVAL);
}

#[test]
fn tree_without_deferred_changes_has_no_watermarks() {
    let served = Served::new();
    let tree = served.open();
    assert_eq!(tree.watermarks(), Err(-libc::ENODATA));
    assert_eq!(tree.wait(ON_DISK, 0), -libc::ENODATA);
}
