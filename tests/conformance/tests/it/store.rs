//! Cache stores that are closed and reopened.

use std::path::Path;
use std::sync::Arc;

use tombolo_layer_cache::store::{OpenError, OriginIdentity, Store, StoreOptions};
use tombolo_test_support::once_free;

/// Opens a store whose last owner may still be about to end.
pub fn opened_store(dir: &Path, identity: &OriginIdentity, options: StoreOptions) -> Arc<Store> {
    let is_in_use = |error: &_| matches!(error, OpenError::InUse { .. });
    once_free(|| Store::open(dir, identity, options), is_in_use).expect("a store")
}
