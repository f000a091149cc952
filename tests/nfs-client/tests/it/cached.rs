//! A cache of an origin.

use std::sync::Arc;

use tempfile::TempDir;
use tombolo_core::fs::{Export, Volume};
use tombolo_layer_cache::store::{OriginIdentity, Store, StoreOptions};
use tombolo_layer_cache::{CacheExport, Options, over};

/// Creates a cache of an origin in a new directory.
pub fn cached(origin: &dyn Export, options: Options) -> (TempDir, Arc<CacheExport>) {
    let dir = tempfile::tempdir().expect("a directory");
    let identity = OriginIdentity { location: "nfs:".into(), volume: Volume::default() };
    let store = Store::open(dir.path(), &identity, StoreOptions::default()).expect("a store");
    (dir, Arc::new(over(origin, store, options).expect("a cache")))
}
