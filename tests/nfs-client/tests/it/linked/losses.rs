//! Replacement of lost links: users of the mount notice only a delay.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tombolo_back_memory::Memory;
use tombolo_back_nfs_client::Options;
use tombolo_core::fs::{
    Client, Create, Exclusive, Export, File, FileSystem, FileType, Mode, NewMode, NodeId, OpenFlags,
    PermissionCheck, SyncScope, Write,
};
use tombolo_core::{Ctx, Error, Interrupt, SessionId};
use tombolo_host_rpc::client::InFlight;
use tombolo_layer_basic::delay;
use tombolo_layer_replies as replies;
use tombolo_mem::Buffer;
use tombolo_nfs_client_tests::linked::{LinkPlan, LinkServer};
use tombolo_nfs_client_tests::mount::{hard, soft};
use tombolo_nfs_tests::test_server::Plan;
use tombolo_test_support::name;

use crate::hostile::stage::told;

fn attach(export: &dyn Export) -> (Arc<dyn FileSystem>, Ctx) {
    let client = Client { session: SessionId(1), label: "test".into(), checks: PermissionCheck::BackEnd };
    (export.attach(&client).expect("a session"), Ctx::root(SessionId(1)))
}

fn server() -> Arc<LinkServer> {
    LinkServer::new(Plan::over(Arc::new(Memory::default())), LinkPlan::default())
}

#[test]
fn a_call_over_a_link_is_answered() {
    let server = server();
    let export = server.mounted(hard());
    let (fs, cx) = attach(&*export);
    let attr = fs.getattr(&cx, NodeId::ROOT, None).wait().expect("attributes");
    assert_eq!(attr.file_type, FileType::Directory);
    assert_eq!(server.dialed(), 1, "MOUNT and NFS over one link");
}

#[test]
fn a_lost_link_is_replaced() {
    let server = server();
    let export = server.mounted(hard());
    let (fs, cx) = attach(&*export);
    for round in 1..=20 {
        server.cut();
        fs.getattr(&cx, NodeId::ROOT, None).wait().expect("attributes");
        assert_eq!(server.dialed(), 1 + round);
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
                let (fs, cx) = attach(&**export);
                for number in (0..).take_while(|_| cuts.load(Ordering::SeqCst) < 30) {
                    let text = format!("{worker}-{number}");
                    let mode = NewMode::settled(Mode::new(0o755));
                    fs.mkdir(&cx, NodeId::ROOT, name(&text), mode).wait().expect("it was not there before");
                    fs.rmdir(&cx, NodeId::ROOT, name(&text)).wait().expect("it was there");
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
    let (fs, cx) = attach(&*hasty);
    let failed = fs.getattr(&cx, NodeId::ROOT, None).wait().expect_err("there is no server");
    let text = told(&failed);
    assert!(text.contains("no link: the server is down"), "{text}");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let (fs, cx) = attach(&*patient);
            fs.getattr(&cx, NodeId::ROOT, None).wait().expect("attributes, in the end")
        });
        // The call waits either already or later.
        assert!(!waiting.is_finished());
        server.away.store(false, Ordering::SeqCst);
        waiting.join().expect("no panic");
    });
    fs.getattr(&cx, NodeId::ROOT, None).wait().expect("the hasty one goes on");
}

#[test]
fn an_interrupt_ends_a_waiting_call() {
    let server = server();
    let export = server.mounted(hard());
    let (fs, cx) = attach(&*export);
    server.away.store(true, Ordering::SeqCst);
    server.cut();
    let interrupt = Interrupt::new();
    let cx = Ctx { interrupt: interrupt.clone(), ..cx };
    let since = Instant::now();
    interrupt.raise();
    let failed = fs.getattr(&cx, NodeId::ROOT, None).wait().expect_err("no server answers");
    assert!(matches!(failed, Error::Interrupted), "{failed:?}");
    assert!(since.elapsed() >= Duration::from_secs(2), "until then an answer is worth waiting for");
}

/// Reads in pieces, which are awaited in order: pieces answered early must withhold neither memory nor
/// in-flight permits from the awaited ones.
#[test]
fn many_small_pieces_of_large_reads_do_not_deadlock() {
    let export: Arc<dyn Export> = Arc::new(Memory::default());
    let links = LinkPlan { slots: 8, bulk_bytes: 64 << 10, ..LinkPlan::default() };
    let server = LinkServer::new(Plan::over(export.clone()), links);
    let mut options = Options { read_size_max: 4096, write_size_max: 4096, ..hard() };
    options.rpc.in_flight = InFlight::Fixed(2);
    let export = server.mounted(options);
    let (fs, cx) = attach(&*export);
    let bytes: Vec<u8> = (0..1_000_000_u32).map(|number| number as u8 ^ (number >> 8) as u8).collect();
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let create = Create { mode: NewMode::settled(Mode::new(0o644)), flags, exclusive: Exclusive::default() };
    let made = fs.create(&cx, NodeId::ROOT, name("file"), &create).wait().expect("created");
    let file = File { node: made.entry.node, open: made.open };
    fs.write(&cx, file, &Write::default(), bytes.clone().into()).wait().expect("written");
    fs.fsync(&cx, file, SyncScope::All).wait().expect("stable");
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let (fs, cx) = attach(&*export);
                let node = fs.lookup(&cx, NodeId::ROOT, name("file")).wait().expect("found").node;
                let open = fs.open(&cx, node, OpenFlags::READ).wait().expect("opened").open;
                let file = File { node, open };
                let mut buffer = Buffer::new(bytes.len());
                for _ in 0..3 {
                    let read = fs.read(&cx, file, 0, buffer.sink(0..bytes.len())).wait().expect("read");
                    assert_eq!(read.count, bytes.len());
                    assert!(buffer.as_slice() == Some(&*bytes));
                }
            });
        }
    });
}
