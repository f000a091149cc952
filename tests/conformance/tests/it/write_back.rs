//! The waist's cases over write-back, on a cache of an origin in memory.

use std::sync::Arc;

use tombolo_back_memory::Memory;
use tombolo_conformance::waist::Needs;
use tombolo_core::fs::Export;
use tombolo_layer_cache::store::StoreOptions;
use tombolo_layer_cache::{Contract, Options, over};
use tombolo_layer_write_back as write_back;

use crate::common::{opened_store, run_without};

/// Features that the layer lacks.
const LACKS: Needs = Needs::RANGES.union(Needs::VERSIONS).union(Needs::FORGETS).union(Needs::CHANGES);

#[test]
fn write_back_over_a_cache() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = opened_store(&dir.path().join("cache"), StoreOptions::default());
    let options = Options { contract: Contract::Exclusive, ..Options::default() };
    let cache = over(&Memory::default(), store, options).expect("a cache");
    let layer = write_back::over(&cache, &dir.path().join("write-back"), write_back::Options::default());
    let export: Arc<dyn Export> = Arc::new(layer.expect("a journal"));
    // Access lists.
    let unsupported = "the file system beneath does not support it";
    run_without(LACKS, "write-back over a cache over memory", &export, &[unsupported]);
}
