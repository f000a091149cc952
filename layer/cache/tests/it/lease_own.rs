//! A cache's own lease from an earlier life: on a full origin, and with a copy of its directory.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tombolo_core::Error;
use tombolo_core::fs::{Export, Op};
use tombolo_layer_basic::around::Call;
use tombolo_layer_cache::{Claim, LEASE_NAME, LeaseError, LeaseState, Life};
use tombolo_test_support::{Act, Scripted, image, until};

use crate::lease::{SHORT, claim, holder_of, leased, left_by};
use crate::world::{LONG, Origin};

/// Returns an origin without space for more files while set.
fn full(origin: &Origin) -> (Arc<dyn Export>, Arc<AtomicBool>) {
    let is_full = Arc::new(AtomicBool::new(true));
    let full = is_full.clone();
    let is_refused = move |call: Call| call.op == Op::Create && full.load(Ordering::SeqCst);
    let script = move |call| Act::fail_if(is_refused(call), Error::NoSpace);
    (Scripted::over(origin.export.clone(), script), is_full)
}

fn text(origin: &Origin) -> String {
    String::from_utf8(origin.direct.contents(LEASE_NAME)).expect("text")
}

#[test]
fn own_lease_is_renewed_on_a_full_origin() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    let left = left_by(&origin, dir.path(), "earlier");
    origin.direct.put(LEASE_NAME, &left);
    let (layered, _is_full) = full(&origin);
    let before = origin.direct.attr(LEASE_NAME);
    let again = leased(&*layered, dir.path(), claim("later", LONG)).expect("its own");
    assert_eq!(again.lease(), Some(LeaseState::Held));
    let after = origin.direct.attr(LEASE_NAME);
    assert!(after.fileid == before.fileid && after.mtime > before.mtime, "{before:?} {after:?}");
    assert!(text(&origin).contains("host: later") && !text(&origin).contains("host: earlier"));
    let elsewhere = tempfile::tempdir().expect("a directory");
    assert_eq!(holder_of(leased(&*origin.export, elsewhere.path(), claim("other", LONG))), "later");
}

#[test]
fn cache_with_pending_changes_starts_without_a_lease() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.direct.put("file", b"one");
    let (layered, is_full) = full(&origin);
    let refused = leased(&*layered, dir.path(), claim("here", SHORT)).map(drop);
    assert!(matches!(refused, Err(LeaseError::Unwritable { source: Error::NoSpace, .. })), "{refused:?}");
    let begun = leased(&*layered, dir.path(), Claim { may_come_later: true, ..claim("here", SHORT) });
    let begun = begun.expect("it begins");
    assert_eq!(begun.lease(), Some(LeaseState::RunOut));
    assert_eq!(begun.contents("file"), b"one");
    origin.direct.put("file", b"other");
    assert_eq!(begun.contents("file"), b"other", "the origin is asked");
    is_full.store(false, Ordering::SeqCst);
    until("it has the lease", || begun.lease() == Some(LeaseState::Held));
    assert!(text(&origin).contains("host: here"));
    // Another's lease is not taken over.
    drop(begun);
    let elsewhere = tempfile::tempdir().expect("a directory");
    let _other = leased(&*origin.export, elsewhere.path(), claim("other", LONG)).expect("it is free");
    is_full.store(true, Ordering::SeqCst);
    let late = leased(&*layered, dir.path(), Claim { may_come_later: true, ..claim("here", LONG) }).map(drop);
    assert!(matches!(late, Err(LeaseError::Unwritable { .. })), "{late:?}");
}

#[test]
fn late_lease_from_another_is_confirmed_first() {
    const PERIOD: Duration = Duration::from_millis(100);
    for is_taken_again in [false, true] {
        let (origin, dirs) = (Origin::new(), [(); 2].map(|()| tempfile::tempdir().expect("a directory")));
        let left = left_by(&origin, dirs[1].path(), "first");
        let (layered, is_full) = full(&origin);
        let late = Claim { may_come_later: true, ..claim("late", PERIOD) };
        let begun = leased(&*layered, dirs[0].path(), late).expect("it begins");
        origin.direct.put(LEASE_NAME, &left);
        std::thread::sleep(10 * PERIOD);
        is_full.store(false, Ordering::SeqCst);
        // Last time at which the lease was not yet acquired.
        let mut before = Instant::now();
        loop {
            let looked = Instant::now();
            let text = origin.direct.get(LEASE_NAME).unwrap_or_default();
            if String::from_utf8_lossy(&text).contains("host: late") {
                break;
            }
            before = looked;
        }
        if is_taken_again {
            origin.direct.unlink(LEASE_NAME).expect("removed");
            origin.direct.put(LEASE_NAME, &left);
            until("it is lost", || begun.lease() == Some(LeaseState::Lost));
            continue;
        }
        until("it has the lease", || begun.lease() == Some(LeaseState::Held));
        assert!(before.elapsed() >= PERIOD * 3 / 2, "relied on after {:?}", before.elapsed());
        drop(begun);
        assert!(matches!(origin.direct.lookup(LEASE_NAME), Err(Error::NotFound)), "it is given back");
    }
}

fn claim_of(process: &str, life: Life) -> Claim {
    Claim { process: process.to_owned(), life, ..claim("first", Duration::from_secs(60)) }
}

#[test]
fn copied_cache_waits_for_a_live_holder_only() {
    let (living, own) = (std::process::id().to_string(), Life::of_this_process("0a".into()));
    let later = |origin: &Origin, of: &Path| {
        let copied = tempfile::tempdir().expect("a directory");
        image(of, copied.path());
        leased(&*origin.export, copied.path(), claim_of(&living, own.clone()))
    };
    let dead = Life { started: "1".into(), ..own.clone() };
    let rebooted = Life { boot: "another".into(), ..own.clone() };
    let elsewhere = Life { machine: "0b".into(), boot: "another".into(), ..own.clone() };
    let cases = [(own.clone(), false), (dead, true), (rebooted, true), (elsewhere, false)];
    for (life, follows) in cases {
        let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
        let _first = leased(&*origin.export, dir.path(), claim_of(&living, life.clone())).expect("a cache");
        let second = later(&origin, dir.path());
        match follows {
            true => drop(second.unwrap_or_else(|error| panic!("{life:?} is followed: {error}"))),
            false => assert_eq!(holder_of(second), "first", "{life:?}"),
        }
    }
}

#[test]
fn a_lease_that_a_copy_has_taken_is_lost() {
    let (origin, dirs) = (Origin::new(), [(); 2].map(|()| tempfile::tempdir().expect("a directory")));
    let first = leased(&*origin.export, dirs[0].path(), claim("first", 25 * SHORT)).expect("a cache");
    image(dirs[0].path(), dirs[1].path());
    let taking = Claim { takes: true, ..claim("second", SHORT) };
    let _second = leased(&*origin.export, dirs[1].path(), taking).expect("it is taken");
    until("it is lost", || first.lease() == Some(LeaseState::Lost));
}
