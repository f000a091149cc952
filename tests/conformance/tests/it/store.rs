//! Cache stores that are closed and reopened.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tombolo_layer_cache::store::{OpenError, OriginIdentity, Store, StoreOptions};

/// Opens a store whose last owner may still be about to end.
pub fn opened_store(dir: &Path, identity: &OriginIdentity, options: StoreOptions) -> Arc<Store> {
    for _ in 0..6000 {
        match Store::open(dir, identity, options) {
            Err(OpenError::InUse { .. }) => std::thread::sleep(Duration::from_millis(10)),
            opened => return opened.expect("a store"),
        }
    }
    panic!("{} is in use for ever", dir.display());
}
