//! Two caches of one Tombolo server, each under a lease: each sees the other's writes at once and otherwise
//! sends no requests.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use tombolo_back_memory::Memory;
use tombolo_conformance::waist::World;
use tombolo_core::fs::{Export, LeaseTable, Op, OpenFlags, Volume};
use tombolo_layer_basic::stats::{self, Counters};
use tombolo_layer_cache::store::{OriginIdentity, Store, StoreOptions};
use tombolo_layer_cache::{CacheExport, Contract, LeaseState, Options as CacheOptions, over};
use tombolo_nfs_client_tests::mount::{hard, mounted, world};
use tombolo_nfs_tests::test_server::{Plan, TestServer};

/// After a change, a tenth of it must pass before another lease is granted.
const TERM: Duration = Duration::from_secs(10);

fn cache(server: &TestServer, dir: &Path) -> Arc<CacheExport> {
    let identity = OriginIdentity { location: "nfs:".into(), volume: Volume::default() };
    let store = Store::open(dir, &identity, StoreOptions::default()).expect("a store");
    let options = CacheOptions {
        contract: Contract::Lease,
        // Never refreshed by age: only a recall of the lease invalidates.
        attr_refresh: Duration::from_secs(3600),
        // An hour ahead, so that no change is too recent to be cached.
        wall_clock: || SystemTime::now() + Duration::from_secs(3600),
        ..CacheOptions::default()
    };
    let origin = mounted(server.address(), hard());
    Arc::new(over(&*origin, store, options).expect("a cache"))
}

fn until_held(caches: &[Arc<CacheExport>]) {
    let begun = Instant::now();
    while !caches.iter().all(|cache| cache.counts().lease == Some(LeaseState::Held)) {
        assert!(begun.elapsed() < Duration::from_secs(60), "never granted");
        thread::sleep(Duration::from_millis(10));
    }
}

fn read(world: &World, name: &str) -> Vec<u8> {
    let node = world.lookup(name).expect("there").node;
    let file = world.open(node, OpenFlags::READ).expect("open");
    let bytes = world.read_all(file, 0, 1 << 12);
    world.release(file);
    bytes
}

#[test]
fn leased_caches_see_writes_at_once_without_polling() {
    let leases = Some(LeaseTable::new(TERM, Duration::ZERO, 1));
    let counters = Counters::new();
    let tree = stats::over(Arc::new(Memory::default()), counters.clone());
    let server = Plan { leases, ..Plan::over(Arc::new(tree)) }.start();
    let dirs = [0, 1].map(|_| tempfile::tempdir().expect("a directory"));
    let caches = [0, 1].map(|at| cache(&server, dirs[at].path()));
    let one = world(caches[0].clone() as Arc<dyn Export>);
    for round in 0..3 {
        let text = format!("text {round}");
        drop(one.unlink("file"));
        one.file_with("file", text.as_bytes());
        let two = one.through(caches[1].clone());
        assert_eq!(read(&two, "file"), text.as_bytes(), "at once");
        until_held(&caches);
        let look = || [&one, &two].map(|world| assert_eq!(read(world, "file"), text.as_bytes()));
        look();
        look();
        let before = counters.snapshot();
        for _ in 0..50 {
            look();
        }
        let requested = counters.snapshot().since(&before).operations.into_iter().map(|each| each.name);
        // The server synchronizes and closes files that are idle for seconds; no client requests that.
        let by_server = [Op::Fsync, Op::Release].map(Op::name);
        let requested: Vec<_> = requested.filter(|name| !by_server.contains(&name.as_str())).collect();
        assert!(requested.is_empty(), "{requested:?}");
    }
}
