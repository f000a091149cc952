//! Leases granted by the origin's server, and the validity of cached state under them.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime};

use tombolo_core::fs::{
    Client, Export, FileSystem, LeaseAnswer, LeaseClient, LeaseRequest, LeaseTable, Leases,
};
use tombolo_core::{Answer, Ctx, Error, Result, forward};
use tombolo_layer_basic::{Around, Layered, around};
use tombolo_layer_cache::{Contract, LeaseState, Options};
use tombolo_test_support::{Session, until};

use crate::world::{Cached, LONG, Origin, opened_store, options, pattern};

/// Term of which a tenth passes after a change before the next grant.
const SHORT: Duration = Duration::from_secs(1);

/// A server that grants leases, and its clients.
#[derive(Clone)]
struct Server {
    tree: Arc<dyn Export>,
    table: Arc<Mutex<Arc<LeaseTable>>>,
}

impl Server {
    fn new(origin: &Origin, term: Duration) -> Self {
        let table = LeaseTable::new(term, Duration::ZERO, 1);
        let server = Self { tree: origin.export.clone(), table: Arc::new(Mutex::new(table)) };
        let ticking = Arc::downgrade(&server.table);
        thread::spawn(move || {
            while let Some(table) = ticking.upgrade() {
                table.lock().expect("a table").tick();
                drop(table);
                thread::sleep(Duration::from_millis(5));
            }
        });
        server
    }

    fn table(&self) -> Arc<LeaseTable> {
        self.table.lock().expect("a table").clone()
    }

    /// Restarts the server with another epoch.
    fn restart(&self, term: Duration, epoch: u64) {
        let before =
            std::mem::replace(&mut *self.table.lock().expect("a table"), LeaseTable::new(term, term, epoch));
        before.end();
    }

    fn client(&self, number: u64) -> Remote {
        let around =
            Line { server: self.clone(), client: LeaseClient(number, 1), is_cut: AtomicBool::new(false) };
        Remote(Arc::new(around))
    }
}

/// Connection of a client to the server.
struct Line {
    server: Server,
    client: LeaseClient,
    is_cut: AtomicBool,
}

impl Line {
    fn passes(&self) -> Result<()> {
        if self.is_cut.load(Ordering::SeqCst) { Err(Error::Io { source: None }) } else { Ok(()) }
    }
}

impl Around for Line {
    fn around<T: around::Payload>(&self, call: around::Call, inner: impl FnOnce() -> Answer<T>) -> Answer<T> {
        if let Err(error) = self.passes() {
            return Answer::err(error);
        }
        let changing =
            call.mutates.then(|| self.server.table().change(self.client).wait().expect("in the end"));
        let done = inner().wait();
        drop(changing);
        done.into()
    }
}

/// The tree as one client accesses it.
#[derive(Clone)]
struct Remote(Arc<Line>);

impl Remote {
    fn cut(&self, is_cut: bool) {
        self.0.is_cut.store(is_cut, Ordering::SeqCst);
    }

    fn session(&self) -> Session {
        Session::attach(self)
    }

    fn cached(&self, dir: &Path, attr_refresh: Duration) -> Cached {
        let options = Options {
            attr_refresh,
            // The origin's clock shows every change, so nothing is too recent.
            wall_clock: || SystemTime::now() + LONG,
            ..options(Contract::Lease)
        };
        let store = opened_store(dir, Default::default());
        Cached::new(tombolo_layer_cache::over(self, store.clone(), options).expect("a cache"), store)
    }
}

impl Export for Remote {
    fn attach(&self, client: &Client) -> Result<Arc<dyn FileSystem>> {
        let far = Layered::new(self.0.server.tree.clone(), self.0.clone()).attach(client)?;
        Ok(Arc::new(RemoteSession { far, line: self.0.clone() }))
    }
}

struct RemoteSession {
    far: Arc<dyn FileSystem>,
    line: Arc<Line>,
}

impl FileSystem for RemoteSession {
    forward!(to self.far; getattr setattr access readlink create create_unnamed mkdir symlink mknod link unlink rmdir lookup
        rename open flush fsync read write readdir statfs syncfs forget release profile persistent_handles);

    fn leases(&self) -> Option<&dyn Leases> {
        Some(self)
    }
}

impl Leases for RemoteSession {
    fn lease(&self, _: &Ctx, ask: LeaseRequest) -> Answer<LeaseAnswer> {
        let line = self.line.clone();
        Answer::later(async move {
            line.passes()?;
            let answer = line.server.table().ask(line.client, ask).await;
            line.passes()?;
            Ok(answer)
        })
    }
}

fn is_held(cached: &Cached) -> bool {
    cached.cache.counts().lease == Some(LeaseState::Held)
}

fn size(session: &Session, text: &str) -> Result<u64> {
    session.lookup(text).map(|entry| entry.attr.size)
}

#[test]
fn nothing_is_asked_twice_while_a_lease_is_held() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.put("file", &pattern(200_000, 1));
    let cached = Server::new(&origin, LONG).client(1).cached(dir.path(), Duration::ZERO);
    assert!(is_held(&cached));
    let look = || {
        assert_eq!(cached.contents("file"), pattern(200_000, 1));
        assert!(matches!(cached.lookup("none"), Err(Error::NotFound)));
        assert_eq!(cached.names(""), ["file"]);
    };
    look();
    look();
    let asked = origin.asked_in_all();
    for _ in 0..10 {
        look();
    }
    assert_eq!(origin.asked_in_all(), asked);
}

#[test]
fn change_by_another_client_is_seen_immediately() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let server = Server::new(&origin, 10 * SHORT);
    // Attributes never expire, so only the recall invalidates them.
    let (cached, writer) = (server.client(1).cached(dir.path(), LONG), server.client(2).session());
    for round in 1..5 {
        until("a lease is held", || is_held(&cached));
        writer.put("file", &pattern(round, 1));
        assert_eq!(size(&cached.session, "file").expect("there"), round as u64);
        assert_eq!(cached.contents("file"), pattern(round, 1));
        until("a lease is held", || is_held(&cached));
        assert!(matches!(cached.lookup("other"), Err(Error::NotFound)));
        writer.put("other", b"");
        cached.lookup("other").expect("there");
        writer.unlink("other").expect("removed");
    }
}

#[test]
fn state_fetched_before_a_lease_is_revalidated_under_it() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let server = Server::new(&origin, 10 * SHORT);
    let (cached, writer) = (server.client(1).cached(dir.path(), Duration::ZERO), server.client(2).session());
    for round in 1..4 {
        until("a lease is held", || is_held(&cached));
        writer.put("file", &pattern(round, 1));
        // Without a lease, and with none granted for a while.
        assert_eq!(size(&cached.session, "file").expect("there"), round as u64);
        writer.put("file", &pattern(100 + round, 1));
        until("a lease is held", || is_held(&cached));
        assert_eq!(size(&cached.session, "file").expect("there"), 100 + round as u64);
    }
}

#[test]
fn own_change_keeps_the_lease_and_is_seen() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let server = Server::new(&origin, LONG);
    let cached = server.client(1).cached(dir.path(), Duration::ZERO);
    for round in 1..20 {
        let text = format!("file-{}", round % 3);
        cached.put(&text, &pattern(round, 1));
        assert_eq!(size(&cached.session, &text).expect("there"), round as u64);
        assert_eq!(cached.contents(&text), pattern(round, 1));
        assert!(is_held(&cached));
    }
    assert_eq!(cached.names("").len(), 3);
}

#[test]
fn unrenewable_lease_expires_before_others_stop_waiting() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.put("file", b"old");
    let (server, restarts) = (Server::new(&origin, SHORT), [false, true]);
    let (far, writer) = (server.client(1), server.client(2).session());
    let cached = far.cached(dir.path(), Duration::ZERO);
    for (round, is_restarted) in restarts.into_iter().enumerate() {
        let (old, new) = (size(&cached.session, "file").expect("there"), 10 + round as u64);
        until("a lease is held, and it is looked at under it", || {
            size(&cached.session, "file").is_ok() && is_held(&cached)
        });
        far.cut(true);
        if is_restarted {
            server.restart(SHORT, 1000);
        }
        thread::scope(|scope| {
            let put = scope.spawn(|| writer.put("file", &pattern(new as usize, 1)));
            while !put.is_finished() {
                let seen = size(&cached.session, "file").ok();
                assert!([None, Some(old)].contains(&seen), "{seen:?}");
            }
            put.join().expect("written");
        });
        assert!(size(&cached.session, "file").is_err(), "it would have to be asked for");
        far.cut(false);
        assert_eq!(size(&cached.session, "file").expect("there"), new);
        until("a lease is held again", || is_held(&cached));
        assert_eq!(size(&cached.session, "file").expect("there"), new);
    }
}

#[test]
fn end_returns_the_lease_and_leaseless_server_is_refused() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let server = Server::new(&origin, LONG);
    let cached = server.client(1).cached(&dir.path().join("one"), LONG);
    drop(cached);
    assert!(server.table().change(LeaseClient(2, 1)).is_done(), "nothing is waited for");
    let options = Options { contract: Contract::Lease, ..Options::default() };
    let store = opened_store(&dir.path().join("two"), Default::default());
    let refused = tombolo_layer_cache::over(&*origin.export, store, options).map(drop);
    assert!(matches!(refused, Err(Error::NotSupported)), "{refused:?}");
}

/// Performs one step of the simulation below.
fn step(
    rng: &mut fastrand::Rng,
    server: &Server,
    clients: &[(Remote, Session)],
    newest: &mut [u64; 4],
) -> usize {
    let by = rng.usize(..clients.len());
    let (remote, session) = &clients[by];
    let at = rng.usize(..newest.len());
    let text = format!("file-{at}");
    match rng.u32(..100) {
        // Cached clients tolerate no delay: each answer is the latest state.
        0..74 => match size(session, &text) {
            Ok(size) => assert_eq!(size, newest[at], "{text} by {by}"),
            Err(Error::NotFound) => assert_eq!(newest[at], 0, "{text} by {by}"),
            Err(_) => assert!(remote.0.passes().is_err(), "{text} by {by}"),
        },
        74..80 if remote.0.passes().is_ok() => {
            newest[at] = rng.u64(1..5000);
            session.put(&text, &pattern(newest[at] as usize, 1));
        }
        80..83 if remote.0.passes().is_ok() => {
            let removed = session.unlink(&text);
            assert_eq!(removed.is_ok(), newest[at] > 0, "{removed:?}");
            newest[at] = 0;
        }
        83..86 => remote.cut(true),
        86..90 => clients.iter().for_each(|(remote, _)| remote.cut(false)),
        90 => server.restart(SHORT / 4, rng.u64(..)),
        _ => thread::sleep(Duration::from_millis(rng.u64(..60))),
    }
    usize::from(remote.0.passes().is_err())
}

#[test]
fn leased_caches_see_newest_data_through_partitions_and_restarts() {
    for seed in 0..4 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let origin = Origin::new();
        let server = Server::new(&origin, SHORT / 4);
        let dirs = [0, 1].map(|_| tempfile::tempdir().expect("a directory"));
        let remotes = [1, 2, 3].map(|number| server.client(number));
        let caches = [0, 1].map(|at| remotes[at].cached(dirs[at].path(), Duration::ZERO));
        let direct = remotes[2].session();
        let sessions = [caches[0].session.clone(), caches[1].session.clone(), direct];
        let clients: Vec<_> = remotes.into_iter().zip(sessions).collect();
        let mut newest = [0; 4];
        let cut: usize = (0..500).map(|_| step(&mut rng, &server, &clients, &mut newest)).sum();
        clients.iter().for_each(|(remote, _)| remote.cut(false));
        until("both hold leases again", || caches.iter().all(is_held));
        assert!(cut > 0);
        let hits: u64 = caches.iter().map(|cached| cached.cache.counts().hits).sum();
        assert!(hits > 0, "leases are of use");
    }
}
