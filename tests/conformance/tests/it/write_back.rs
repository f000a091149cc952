//! The waist's cases over write-back, on a cache of an origin in memory.

use std::sync::Arc;

use tombolo_back_memory::Memory;
use tombolo_conformance::waist::{Needs, Setup, run};
use tombolo_core::fs::{Export, PermissionCheck, Volume};
use tombolo_layer_cache::store::{OriginIdentity, Store, StoreOptions};
use tombolo_layer_cache::{Contract, Options, over};

/// Features that the layer lacks.
const LACKS: &[&str] = &["RANGES", "VERSIONS", "FORGETS", "CHANGES"];

#[test]
fn write_back_over_a_cache() {
    let dir = tempfile::tempdir().expect("a directory");
    let identity = OriginIdentity { location: "memory:".into(), volume: Volume::default() };
    let store = Store::open(&dir.path().join("cache"), &identity, StoreOptions::default()).expect("a store");
    let options = Options { contract: Contract::Exclusive, ..Options::default() };
    let cache = over(&Memory::default(), store, options).expect("a cache");
    let here = dir.path().join("write-back");
    let export: Arc<dyn Export> = Arc::new(
        tombolo_layer_write_back::over(&cache, &here, tombolo_layer_write_back::Options::default())
            .expect("a journal"),
    );
    let may_skip: Vec<_> = LACKS.iter().map(|name| format!("needs Needs({name})")).collect();
    // Access lists.
    let unsupported = "the file system beneath does not support it";
    let may_skip: Vec<_> = may_skip.iter().map(String::as_str).chain([unsupported]).collect();
    let lacks =
        LACKS.iter().filter_map(|name| Needs::from_name(name)).fold(Needs::empty(), |all, one| all | one);
    let setup = Setup { owners: true, checks: PermissionCheck::BackEnd, lacks };
    run(&export, setup).expect("write-back over a cache over memory", &may_skip);
}
