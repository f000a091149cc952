//! The lease of a tree for one cache.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tombolo_core::fs::{Create, Export, Notice, Op};
use tombolo_core::{Error, Identity};
use tombolo_layer_basic::readonly;
use tombolo_layer_cache::store::StoreOptions;
use tombolo_layer_cache::{Claim, Contract, LEASE_NAME, LeaseError, LeaseState, Life, Options};
use tombolo_test_support::{Act, Scripted, Session, until};

use crate::world::{Cached, LONG, Origin, opened_store, options};

pub const SHORT: Duration = Duration::from_millis(20);

pub fn claim(host: &str, period: Duration) -> Claim {
    let (process, since) = ("7".to_owned(), "1 May".to_owned());
    Claim {
        identity: Identity::ROOT,
        host: host.to_owned(),
        process,
        since,
        life: Life::of_this_process(String::new()),
        takes: false,
        may_come_later: false,
        lasts: false,
        period,
    }
}

pub fn leased(origin: &dyn Export, dir: &Path, claim: Claim) -> Result<Cached, LeaseError> {
    let store = opened_store(dir, StoreOptions::default());
    let options = Options { attr_refresh: Duration::ZERO, ..options(Contract::Exclusive) };
    Ok(Cached::new(tombolo_layer_cache::over_leased(origin, store.clone(), options, claim)?, store))
}

pub fn holder_of(refused: Result<Cached, LeaseError>) -> String {
    match refused.map(drop) {
        Err(LeaseError::Held { holder, .. }) => holder.host,
        other => panic!("not refused because of another: {other:?}"),
    }
}

impl Cached {
    pub fn lease(&self) -> Option<LeaseState> {
        self.cache.counts().lease
    }
}

/// Returns the text that a killed cache of this directory leaves.
pub fn left_by(origin: &Origin, dir: &Path, host: &str) -> Vec<u8> {
    let cached = leased(&*origin.export, dir, claim(host, LONG)).expect("a cache");
    let text = origin.direct.contents(LEASE_NAME);
    drop(cached);
    assert!(matches!(origin.direct.lookup(LEASE_NAME), Err(Error::NotFound)), "it is given back");
    text
}

#[test]
fn a_tree_is_one_cache_s_at_a_time() {
    let (origin, dirs) = (Origin::new(), [(); 2].map(|()| tempfile::tempdir().expect("a directory")));
    let first = leased(&*origin.export, dirs[0].path(), claim("first", LONG)).expect("a cache");
    assert_eq!(first.lease(), Some(LeaseState::Held));
    let second = claim("second", Duration::from_secs(5));
    assert_eq!(holder_of(leased(&*origin.export, dirs[1].path(), second)), "first");
    first.cache.end_lease();
    leased(&*origin.export, dirs[1].path(), claim("second", LONG)).expect("it is free");
}

#[test]
fn killed_cache_regains_its_lease_before_others() {
    let (origin, dirs) = (Origin::new(), [(); 2].map(|()| tempfile::tempdir().expect("a directory")));
    let text = left_by(&origin, dirs[0].path(), "first");
    origin.direct.put(LEASE_NAME, &text);
    assert_eq!(holder_of(leased(&*origin.export, dirs[1].path(), claim("second", LONG))), "first");
    // Another's lease would be awaited for an hour.
    let again = leased(&*origin.export, dirs[0].path(), claim("first", LONG)).expect("its own");
    assert_eq!(again.lease(), Some(LeaseState::Held));
}

#[test]
fn lease_expired_by_origin_clock_is_taken_over() {
    let (origin, dirs) = (Origin::new(), [(); 2].map(|()| tempfile::tempdir().expect("a directory")));
    let text = left_by(&origin, dirs[0].path(), "first");
    origin.direct.put(LEASE_NAME, &text);
    std::thread::sleep(10 * SHORT);
    let second = leased(&*origin.export, dirs[1].path(), claim("second", SHORT)).expect("it is free");
    assert!(String::from_utf8(origin.direct.contents(LEASE_NAME)).expect("text").contains("second"));
    drop(second);
}

#[test]
fn foreign_object_named_as_lease_is_left_unchanged() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.put(LEASE_NAME, b"something else");
    assert_eq!(holder_of(leased(&*origin.export, dir.path(), claim("here", Duration::from_secs(60)))), "");
    assert_eq!(origin.direct.contents(LEASE_NAME), b"something else");
    assert_eq!(origin.direct.names(""), [LEASE_NAME], "nothing is left beside it");
}

#[test]
fn a_tree_that_cannot_be_written_is_refused() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let read_only = readonly::over(origin.export.clone());
    let refused = leased(&read_only, dir.path(), claim("here", LONG)).map(drop);
    assert!(matches!(refused, Err(LeaseError::Unwritable { source: Error::ReadOnly, .. })), "{refused:?}");
}

#[test]
fn lease_file_without_handle_is_removed() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let has_made = AtomicBool::new(false);
    let layered = Scripted::over(origin.export.clone(), move |call| {
        has_made.fetch_or(call.op == Op::Create, Ordering::SeqCst);
        Act::fail_if(call.op == Op::HandleOf && has_made.load(Ordering::SeqCst), Error::TimedOut)
    });
    assert!(leased(&*layered, dir.path(), claim("here", LONG)).is_err());
    assert_eq!(origin.direct.names(""), Vec::<String>::new());
}

#[test]
fn lost_lease_leads_to_revalidation() {
    let (origin, dirs) = (Origin::new(), [(); 2].map(|()| tempfile::tempdir().expect("a directory")));
    origin.direct.put("file", b"one");
    let first = leased(&*origin.export, dirs[0].path(), claim("first", 25 * SHORT)).expect("a cache");
    assert_eq!(first.contents("file"), b"one");
    let watcher = Session::attach(&first.cache);
    let changes = watcher.fs.changes().expect("it is told of changes");
    let told = changes.next(&watcher.cx, 0, 1 << 16).wait().expect("the first notice");
    assert!(changes.is_complete());

    let taking = Claim { takes: true, ..claim("second", SHORT) };
    let second = leased(&*origin.export, dirs[1].path(), taking).expect("it is taken");
    until("it is lost", || first.lease() == Some(LeaseState::Lost));
    second.put("file", b"other");
    assert_eq!(first.contents("file"), b"other");
    let told = changes.next(&watcher.cx, told.last, 1 << 16).wait().expect("a notice");
    assert_eq!((told.list, changes.is_complete()), (vec![Notice::Everything], false));
    drop(first);
    origin.direct.lookup(LEASE_NAME).expect("the second's file is left alone");
    drop(second);
}

#[test]
fn a_lease_that_was_removed_is_lost() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let cached = leased(&*origin.export, dir.path(), claim("here", SHORT)).expect("a cache");
    origin.direct.unlink(LEASE_NAME).expect("removed");
    until("it is lost", || cached.lease() == Some(LeaseState::Lost));
}

#[test]
fn lease_file_is_hidden_and_protected_by_the_cache() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.put("file", b"");
    let cached = leased(&*origin.export, dir.path(), claim("here", LONG)).expect("a cache");
    assert!(matches!(cached.lookup(LEASE_NAME), Err(Error::NotFound)));
    assert_eq!(cached.names(""), ["file"]);
    let refused = [
        cached.unlink(LEASE_NAME).map(drop),
        cached.rename("file", LEASE_NAME, Default::default()).map(drop),
        cached.link("file", LEASE_NAME).map(drop),
        cached.create(LEASE_NAME, &Create::default()).map(drop),
    ];
    assert!(refused.iter().all(|each| matches!(each, Err(Error::NotPermitted))), "{refused:?}");
    origin.direct.lookup(LEASE_NAME).expect("it is there");
}

/// Puts a connection that can be cut, after which all requests fail, before an origin.
fn behind_line(origin: &Origin) -> (Arc<dyn Export>, Arc<AtomicBool>) {
    let is_cut = Arc::<AtomicBool>::default();
    let line = is_cut.clone();
    let script = move |_| Act::fail_if(line.load(Ordering::SeqCst), Error::Disconnected);
    (Scripted::over(origin.export.clone(), script), is_cut)
}

#[test]
fn unrenewable_lease_expires_and_is_reacquired() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.put("file", b"one");
    let (far, is_cut) = behind_line(&origin);
    let cached = leased(&*far, dir.path(), claim("here", SHORT)).expect("a cache");
    assert_eq!(cached.contents("file"), b"one");
    is_cut.store(true, Ordering::SeqCst);
    // A renewal in progress may still succeed.
    until("it has run out, and the origin would have to be asked", || {
        cached.lease() == Some(LeaseState::RunOut) && cached.get("file").is_err()
    });
    origin.direct.put("file", b"other");
    is_cut.store(false, Ordering::SeqCst);
    until("it is held again", || cached.lease() == Some(LeaseState::Held));
}

#[test]
fn lasting_lease_survives_outage_until_taken_over() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.put("file", b"one");
    let (far, is_cut) = behind_line(&origin);
    let cached = leased(&*far, dir.path(), Claim { lasts: true, ..claim("here", SHORT) }).expect("a cache");
    assert_eq!(cached.contents("file"), b"one");
    is_cut.store(true, Ordering::SeqCst);
    std::thread::sleep(SHORT * 20);
    assert_eq!(cached.lease(), Some(LeaseState::Held));
    assert_eq!(cached.contents("file"), b"one");
    let elsewhere = tempfile::tempdir().expect("a directory");
    let taking = Claim { takes: true, ..claim("there", SHORT) };
    let _other = leased(&*origin.export, elsewhere.path(), taking).expect("a cache");
    is_cut.store(false, Ordering::SeqCst);
    until("it is lost", || cached.lease() == Some(LeaseState::Lost));
}
