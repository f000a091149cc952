//! Two caches of one Tombolo server, each under a lease: each sees the other's writes at once and otherwise
//! sends no requests.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tombolo_back_memory::Memory;
use tombolo_core::fs::{Export, LeaseTable, Op};
use tombolo_layer_basic::stats::{self, Counters};
use tombolo_layer_cache::{CacheExport, Contract, LeaseState, Options as CacheOptions};
use tombolo_nfs_client_tests::mount::{hard, mounted, world};
use tombolo_nfs_tests::test_server::{Plan, TestServer};
use tombolo_test_support::until;

use crate::cached::cached;

/// After a change, a tenth of it must pass before another lease is granted.
const TERM: Duration = Duration::from_secs(10);

fn cache(server: &TestServer) -> (tempfile::TempDir, Arc<CacheExport>) {
    let options = CacheOptions {
        contract: Contract::Lease,
        // Never refreshed by age: only a recall of the lease invalidates.
        attr_refresh: Duration::from_secs(3600),
        // An hour ahead, so that no change is too recent to be cached.
        wall_clock: || SystemTime::now() + Duration::from_secs(3600),
        ..CacheOptions::default()
    };
    cached(&*mounted(server.address(), hard()), options)
}

#[test]
fn leased_caches_see_writes_at_once_without_polling() {
    let leases = Some(LeaseTable::new(TERM, Duration::ZERO, 1));
    let counters = Counters::new();
    let tree = stats::over(Arc::new(Memory::default()), counters.clone());
    let server = Plan { leases, ..Plan::over(Arc::new(tree)) }.start();
    let caches = [0, 1].map(|_| cache(&server));
    let is_held = |(_, cache): &(_, Arc<CacheExport>)| cache.counts().lease == Some(LeaseState::Held);
    let one = world(caches[0].1.clone() as Arc<dyn Export>);
    for round in 0..3 {
        let text = format!("text {round}");
        drop(one.unlink("file"));
        one.file_with("file", text.as_bytes());
        let two = one.through(caches[1].1.clone());
        assert_eq!(two.contents("file"), text.as_bytes(), "at once");
        until("both leases", || caches.iter().all(is_held));
        let look = || [&one, &two].map(|world| assert_eq!(world.contents("file"), text.as_bytes()));
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
