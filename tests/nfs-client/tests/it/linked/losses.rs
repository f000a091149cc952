//! Replacement of lost links: users of the mount notice only a delay.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tombolo_back_memory::Memory;
use tombolo_back_nfs_client::Options;
use tombolo_core::fs::{FileType, NodeId, SyncScope};
use tombolo_core::{Ctx, Error, Interrupt};
use tombolo_host_rpc::client::InFlight;
use tombolo_layer_basic::delay;
use tombolo_layer_replies as replies;
use tombolo_nfs_client_tests::linked::{LinkPlan, LinkServer};
use tombolo_nfs_client_tests::mount::{hard, soft};
use tombolo_nfs_tests::test_server::Plan;
use tombolo_test_support::Session;

use crate::hostile::stage::told;

fn server() -> Arc<LinkServer> {
    LinkServer::new(Plan::over(Arc::new(Memory::default())), LinkPlan::default())
}

#[test]
fn a_lost_link_is_replaced() {
    let server = server();
    let export = server.mounted(hard());
    let session = Session::attach(&*export);
    for round in 1..=20 {
        assert_eq!(session.attr(NodeId::ROOT).file_type, FileType::Directory);
        assert_eq!(server.dialed(), round, "MOUNT and NFS over one link");
        server.cut();
    }
}

/// Cuts links between execution and reply: the server must repeat the reply instead of the call.
#[test]
fn calls_pending_at_a_link_loss_are_executed_once() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let slow = delay::over(Arc::new(Memory::default()), Duration::from_micros(300)).expect("a timer");
    let once = replies::open(Arc::new(slow), &replies::Options::default(), &dir.path().join("replies"));
    let server = LinkServer::new(Plan::over(Arc::new(once.expect("a reply layer"))), LinkPlan::default());
    let export = server.mounted(hard());
    let (made, cuts) = (AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|scope| {
        let workers = [0, 1, 2, 3].map(|worker| {
            let (export, made, cuts) = (&export, &made, &cuts);
            scope.spawn(move || {
                let session = Session::attach(&**export);
                for number in (0..).take_while(|_| cuts.load(Ordering::SeqCst) < 30) {
                    let text = format!("{worker}-{number}");
                    session.mkdir(&text).expect("it was not there before");
                    session.rmdir(&text).expect("it was there");
                    made.fetch_add(1, Ordering::SeqCst);
                }
            })
        });
        let mut next = 0;
        while !workers.iter().all(|worker| worker.is_finished()) {
            // A caller has ended two rounds since the last loss, so one of them saw it.
            if made.load(Ordering::SeqCst) >= next {
                server.cut();
                cuts.fetch_add(1, Ordering::SeqCst);
                next = made.load(Ordering::SeqCst) + 8;
            }
            thread::yield_now();
        }
    });
    assert!(server.dialed() >= 30, "the losses were noticed: {} links", server.dialed());
    assert!(export.counts().retransmissions > 0, "{:?}", export.counts());
}

#[test]
fn hard_mounts_wait_for_link_and_soft_ones_fail() {
    let server = server();
    let (patient, hasty) = (server.mounted(hard()), server.mounted(soft()));
    server.away.store(true, Ordering::SeqCst);
    server.cut();
    let session = Session::attach(&*hasty);
    let text = told(&session.lookup(NodeId::ROOT).expect_err("there is no server"));
    assert!(text.contains("no link: the server is down"), "{text}");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| Session::attach(&*patient).attr(NodeId::ROOT));
        // The call waits either already or later.
        assert!(!waiting.is_finished());
        server.away.store(false, Ordering::SeqCst);
        waiting.join().expect("no panic");
    });
    session.lookup(NodeId::ROOT).expect("the hasty one goes on");
}

#[test]
fn an_interrupt_ends_a_waiting_call() {
    let server = server();
    let export = server.mounted(hard());
    let session = Session::attach(&*export);
    server.away.store(true, Ordering::SeqCst);
    server.cut();
    let interrupt = Interrupt::new();
    let session = session.with(Ctx { interrupt: interrupt.clone(), ..session.cx.clone() });
    let since = Instant::now();
    interrupt.raise();
    let failed = session.lookup(NodeId::ROOT).expect_err("no server answers");
    assert!(matches!(failed, Error::Interrupted), "{failed:?}");
    assert!(since.elapsed() >= Duration::from_secs(2), "until then an answer is worth waiting for");
}

/// Reads in pieces, which are awaited in order: pieces answered early must withhold neither memory nor
/// in-flight permits from the awaited ones.
#[test]
fn many_small_pieces_of_large_reads_do_not_deadlock() {
    let links = LinkPlan { slots: 8, bulk_bytes: 64 << 10, ..LinkPlan::default() };
    let server = LinkServer::new(Plan::over(Arc::new(Memory::default())), links);
    let mut options = Options { read_size_max: 4096, write_size_max: 4096, ..hard() };
    options.rpc.in_flight = InFlight::Fixed(2);
    let export = server.mounted(options);
    let session = Session::attach(&*export);
    let bytes: Vec<u8> = (0..1_000_000_u32).map(|number| number as u8 ^ (number >> 8) as u8).collect();
    let file = session.file("file");
    assert_eq!(session.write(file, 0, &bytes).expect("written"), bytes.len());
    session.fs.fsync(&session.cx, file, SyncScope::All).wait().expect("stable");
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let session = Session::attach(&*export);
                let file = session.reader("file");
                for _ in 0..3 {
                    assert!(session.read(file, 0, bytes.len()).expect("read") == bytes);
                }
            });
        }
    });
}
