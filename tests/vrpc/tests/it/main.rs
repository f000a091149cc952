//! The tests that may share a process.

mod cached;
mod capabilities;
mod conformance;
mod crowd;
mod endings;
mod fence;
mod handles;
mod hostile_client;
mod hostile_server;
mod identities;
mod in_place;
mod listings;
mod numbers;
mod openings;
mod reconnect;
mod releases;
mod socket;
mod writes_behind;

use std::sync::Arc;

use tombolo_back_local_dir::{LocalDir, Options};
use tombolo_core::fs::Export;

/// Exports a directory whose changes by the host are reported.
fn local(dir: &tempfile::TempDir) -> Arc<dyn Export> {
    let options = Options { watch_host: true, ..Options::default() };
    Arc::new(LocalDir::open(dir.path(), options).expect("the export"))
}
