//! Word of a disk's new size, for those that serve it.

use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Is told a disk's new size, in bytes. Called on the thread that resized it; must not wait.
pub type SizeWatch = dyn Fn(u64) + Send + Sync;

/// Those that are told of a disk's new size. A back end that can be resized has one.
#[derive(Default)]
pub struct Sizes(Mutex<Vec<Weak<SizeWatch>>>);

impl Sizes {
    /// Adds one. It is told as long as it lives.
    pub fn watch(&self, watch: &Arc<SizeWatch>) {
        let mut watches = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        watches.retain(|watch| watch.strong_count() > 0);
        watches.push(Arc::downgrade(watch));
    }

    /// Tells all of them.
    pub fn changed(&self, size_bytes: u64) {
        let watches = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for watch in watches.iter().filter_map(Weak::upgrade) {
            watch(size_bytes);
        }
    }
}
