//! The waist's cases over a cache: each contract, over origins that answer at once and later.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tombolo_back_local_dir::{LocalDir, Options as DirOptions};
use tombolo_back_memory::Memory;
use tombolo_conformance::waist::{Needs, Setup, run};
use tombolo_core::fs::{Client, Export, File, Name, NodeId, OpenFlags, PermissionCheck, Volume};
use tombolo_core::{Ctx, SessionId};
use tombolo_layer_basic::delay;
use tombolo_layer_cache::store::{OriginIdentity, Store, StoreOptions};
use tombolo_layer_cache::{Contract, Options, over};
use tombolo_mem::{Region, Sink};

/// Features that a cache lacks.
const LACKS: &[&str] = &["LOCKS", "RANGES", "VERSIONS", "FORGETS"];

fn run_over(export: &Arc<dyn Export>, title: &str, contract: Contract) {
    // If others may change the origin, not all changes are noticed.
    let untold = (contract != Contract::Exclusive).then_some("CHANGES");
    let lacks: Vec<_> = LACKS.iter().copied().chain(untold).collect();
    let may_skip: Vec<_> = lacks.iter().map(|name| format!("needs Needs({name})")).collect();
    let lacks =
        lacks.iter().filter_map(|name| Needs::from_name(name)).fold(Needs::empty(), |all, one| all | one);
    let may_skip: Vec<_> = may_skip.iter().map(String::as_str).collect();
    run(export, Setup { owners: true, checks: PermissionCheck::BackEnd, lacks }).expect(title, &may_skip);
}

fn cached(origin: &dyn Export, dir: &Path, contract: Contract) -> Arc<dyn Export> {
    cached_with(origin, dir, contract, StoreOptions::default())
}

fn cached_with(
    origin: &dyn Export,
    dir: &Path,
    contract: Contract,
    options: StoreOptions,
) -> Arc<dyn Export> {
    let identity = OriginIdentity { location: "memory:".into(), volume: Volume::default() };
    // Background work of an earlier cache may still be running.
    let dir = dir.join(format!("{contract:?}"));
    let store = Store::open(&dir, &identity, options).expect("a store");
    Arc::new(over(origin, store, Options { contract, ..Options::default() }).expect("a cache"))
}

#[test]
fn a_cache_over_memory() {
    let dir = tempfile::tempdir().expect("a directory");
    for contract in [Contract::CloseToOpen, Contract::Exclusive, Contract::Refresh(Duration::ZERO)] {
        let export = cached(&Memory::default(), dir.path(), contract);
        run_over(&export, &format!("a cache over memory, {contract:?}"), contract);
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
        let export = cached_with(&Memory::default(), dir.path(), contract, options);
        run_over(&export, &format!("a cache of little memory over memory, {contract:?}"), contract);
    }
}

#[test]
fn a_cache_over_memory_that_answers_later() {
    let dir = tempfile::tempdir().expect("a directory");
    for contract in [Contract::CloseToOpen, Contract::Exclusive] {
        let origin = delay::over(Arc::new(Memory::default()), Duration::from_micros(20)).expect("a timer");
        let export = cached(&origin, dir.path(), contract);
        run_over(&export, &format!("a cache over memory under delay, {contract:?}"), contract);
    }
}

#[test]
fn direct_open_fetches_into_cache() {
    // On a disk, if the build directory is on one, where such reads must be aligned.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let shared = dir.path().join("shared");
    std::fs::create_dir(&shared).expect("mkdir");
    std::fs::write(shared.join("file"), [7; 200_000]).expect("write");
    let origin = LocalDir::open(&shared, DirOptions::default()).expect("the export");
    let export = cached(&origin, dir.path(), Contract::Exclusive);
    let client = Client { session: SessionId(1), label: "test".into(), checks: PermissionCheck::BackEnd };
    let (fs, cx) = (export.attach(&client).expect("attach"), Ctx::root(SessionId(1)));
    let node = fs.lookup(&cx, NodeId::ROOT, Name::new(b"file").expect("a name")).wait().expect("there").node;
    let opened = fs.open(&cx, node, OpenFlags::READ | OpenFlags::DIRECT).wait().expect("open");
    let (file, region) = (File { node, open: opened.open }, Region::heap(300_000));
    assert_eq!(fs.read(&cx, file, 0, Sink::from(&region)).wait().expect("read").count, 200_000);
}
