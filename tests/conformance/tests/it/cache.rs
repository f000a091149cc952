//! The waist's cases over a cache: each contract, over origins that answer at once and later.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tombolo_back_memory::Memory;
use tombolo_conformance::waist::Needs;
use tombolo_core::fs::{Export, OpenFlags};
use tombolo_layer_cache::store::StoreOptions;
use tombolo_layer_cache::{Contract, Options, over};
use tombolo_test_support::Session;

use crate::common::{directory, later, memory, opened_store, run_without};

/// Features that a cache lacks.
const LACKS: Needs = Needs::LOCKS.union(Needs::RANGES).union(Needs::VERSIONS).union(Needs::FORGETS);

fn run_over(export: &Arc<dyn Export>, title: &str, contract: Contract) {
    // If others may change the origin, not all changes are noticed.
    let untold = if contract == Contract::Exclusive { Needs::empty() } else { Needs::CHANGES };
    run_without(LACKS | untold, &format!("{title}, {contract:?}"), export, &[]);
}

fn cached(origin: &dyn Export, dir: &Path, contract: Contract, options: StoreOptions) -> Arc<dyn Export> {
    // Background work of an earlier cache may still be running.
    let store = opened_store(&dir.join(format!("{contract:?}")), options);
    Arc::new(over(origin, store, Options { contract, ..Options::default() }).expect("a cache"))
}

#[test]
fn a_cache_over_memory() {
    let dir = tempfile::tempdir().expect("a directory");
    for contract in [Contract::CloseToOpen, Contract::Exclusive, Contract::Refresh(Duration::ZERO)] {
        let export = cached(&Memory::default(), dir.path(), contract, StoreOptions::default());
        run_over(&export, "a cache over memory", contract);
    }
}

#[test]
fn a_cache_that_has_memory_for_two_files() {
    let dir = tempfile::tempdir().expect("a directory");
    for contract in [Contract::CloseToOpen, Contract::Exclusive] {
        let options = StoreOptions {
            memory_bytes: 4096,
            commit_pause: Duration::from_micros(1),
            ..StoreOptions::default()
        };
        let export = cached(&Memory::default(), dir.path(), contract, options);
        run_over(&export, "a cache of little memory over memory", contract);
    }
}

#[test]
fn a_cache_over_memory_that_answers_later() {
    let dir = tempfile::tempdir().expect("a directory");
    for contract in [Contract::CloseToOpen, Contract::Exclusive] {
        let export = cached(&*later(memory()), dir.path(), contract, StoreOptions::default());
        run_over(&export, "a cache over memory under delay", contract);
    }
}

#[test]
fn direct_open_fetches_into_cache() {
    // On a disk, if the build directory is on one, where such reads must be aligned.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let shared = dir.path().join("shared");
    std::fs::create_dir(&shared).expect("mkdir");
    std::fs::write(shared.join("file"), [7; 200_000]).expect("write");
    let origin = directory(&shared, false);
    let export = cached(&*origin, dir.path(), Contract::Exclusive, StoreOptions::default());
    let session = Session::attach(&*export);
    let file = session.open("file", OpenFlags::READ | OpenFlags::DIRECT).expect("open");
    assert_eq!(session.read(file, 0, 300_000).expect("read").len(), 200_000);
}
