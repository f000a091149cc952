//! Releases, for whose replies nobody waits.

use std::sync::Arc;

use tombolo_back_memory::Memory;
use tombolo_back_vrpc_client::VrpcFileSystem;
use tombolo_core::fs::{File, FileSystem};
use tombolo_layer_basic::stats::{self, Counters};
use tombolo_test_support::{Session, until};
use tombolo_vrpc_tests::site::{Plan, Site, client, root};

/// A session of a counted server, and openings of a file there.
struct Opened {
    _host: Arc<Site>,
    fs: Arc<VrpcFileSystem>,
    counters: Arc<Counters>,
    files: Vec<File>,
}

impl Opened {
    fn new(count: usize, plan: Plan) -> Self {
        let counters = Counters::new();
        let export = stats::over(Arc::new(Memory::default()), counters.clone());
        let host = Site::serving(Arc::new(export), plan);
        let fs = host.export().attach_session(&client()).expect("a session");
        let session = Session::of(fs.clone());
        let node = session.file("file").node;
        let files = (0..count).map(|_| session.reader(node)).collect();
        Self { _host: host, fs, counters, files }
    }

    fn release_all(&mut self) {
        self.files.drain(..).for_each(|file| self.fs.release(&root(), file));
    }

    fn await_releases(&self, count: u64) {
        let released =
            || self.counters.snapshot().operation("release").map_or(0, |operation| operation.count);
        until("the files are released", || released() >= count);
    }
}

#[test]
fn nobody_waits_for_replies_to_releases() {
    let mut opened = Opened::new(20, Plan::default());
    let before = opened.fs.counts();
    opened.release_all();
    opened.await_releases(20);
    let after = opened.fs.counts();
    assert_eq!(after.calls, before.calls + 20);
    assert_eq!(after.answers, before.answers, "no thread has taken one out");
    opened.fs.null(&root()).wait().expect("null");
    assert_eq!(opened.fs.counts().answers, before.answers + 21, "all are taken out with the next reply");
}

#[test]
fn releases_beyond_the_slots_are_sent_too() {
    let mut opened = Opened::new(400, Plan { slots: 8, ..Plan::default() });
    opened.release_all();
    opened.await_releases(400);
    opened.fs.null(&root()).wait().expect("null");
}
