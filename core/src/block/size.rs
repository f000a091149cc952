//! Notification of resizes.

use crate::lock;
use std::sync::{Arc, Mutex, Weak};

/// A callback that receives a disk's new size, in bytes. It runs on the thread that calls [`Sizes::changed`]
/// and must not block.
pub type SizeWatch = dyn Fn(u64) + Send + Sync;

/// The registered watchers of one resizable disk.
#[derive(Default)]
pub struct Sizes(Mutex<Vec<Weak<SizeWatch>>>);

impl Sizes {
    /// Registers a watcher until the last reference to it is dropped.
    pub fn watch(&self, watch: &Arc<SizeWatch>) {
        let mut watches = lock(&self.0);
        watches.retain(|watch| watch.strong_count() > 0);
        watches.push(Arc::downgrade(watch));
    }

    /// Calls all watchers, on this thread, with the disk's new size.
    pub fn changed(&self, size_bytes: u64) {
        let watches = lock(&self.0).clone();
        for watch in watches.iter().filter_map(Weak::upgrade) {
            watch(size_bytes);
        }
    }
}
