//! Calls of one connection run at the same time, and are answered in any order.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tombolo_back_memory::Memory;
use tombolo_layer_basic::delay;
use tombolo_nfs_tests::client::{Expect, mode};
use tombolo_nfs_tests::fixture::Fixture;
use tombolo_nfs_tests::test_server::{Plan, no_squash};
use tombolo_wire_nfs3::args::{CreateHow, StableHow};
use tombolo_wire_nfs3::{Call, FileHandleBuf};

/// Delay of the slow export; long enough for a busy machine to answer quick calls within it.
const SLOW: Duration = Duration::from_secs(5);

/// Starts a server of a quick export and of one that delays every operation.
fn quick_and_slow() -> (Fixture, FileHandleBuf) {
    let slow = delay::over(Arc::new(Memory::default()), SLOW).expect("a timer");
    let plan = Plan::over(Arc::new(Memory::default())).and("/slow", Arc::new(slow), no_squash());
    let fixture = Fixture::new(plan, None);
    let slow = fixture.nfs.root("/slow");
    (fixture, slow)
}

#[test]
fn a_slow_call_does_not_delay_a_quick_one() {
    let (fixture, slow) = quick_and_slow();
    let mut stream = fixture.server.stream();
    let slow = fixture.nfs.message(&Call::Getattr(slow.as_handle()), b"");
    let begun = Instant::now();
    stream.send(&slow.to_bytes()).expect("sent");
    for _ in 0..20 {
        let quick = fixture.nfs.message(&Call::Getattr(fixture.root.as_handle()), b"");
        stream.send(&quick.to_bytes()).expect("sent");
        assert_eq!(stream.answer().xid, quick.xid, "answered out of order");
    }
    assert!(begun.elapsed() < SLOW, "{:?}", begun.elapsed());
    assert_eq!(stream.answer().xid, slow.xid);
}

#[test]
fn slow_calls_run_at_the_same_time() {
    let (fixture, slow) = quick_and_slow();
    let mut stream = fixture.server.stream();
    let begun = Instant::now();
    let mut asked = Vec::new();
    for _ in 0..100 {
        let message = fixture.nfs.message(&Call::Getattr(slow.as_handle()), b"");
        stream.send(&message.to_bytes()).expect("sent");
        asked.push(message.xid);
    }
    let mut answered: Vec<_> = asked.iter().map(|_| stream.answer().xid).collect();
    // One after the other they would take eight minutes.
    assert!(begun.elapsed() < 10 * SLOW, "{:?}", begun.elapsed());
    answered.sort_unstable();
    asked.sort_unstable();
    assert_eq!(answered, asked);
}

/// Writes and reads over many connections at once; readers must see whole files.
#[test]
fn many_clients_work_at_once() {
    let fixture = Fixture::on_host();
    std::thread::scope(|scope| {
        for client in 0..8 {
            let (nfs, root) = (fixture.server.nfs(), fixture.root);
            scope.spawn(move || {
                let dir =
                    nfs.mkdir(&root, format!("client-{client}").as_bytes(), mode(0o755)).done().handle();
                for round in 0..20 {
                    let (name, bytes) = (format!("file-{round}"), vec![client; 3000 + usize::from(client)]);
                    let how = CreateHow::Guarded(mode(0o644));
                    let file = nfs.create(&dir, name.as_bytes(), how).done().handle();
                    nfs.write(&file, 0, &bytes, StableHow::FileSync).done();
                    let read = nfs.read(&file, 0, 8192).done();
                    assert!(read.eof && read.bytes == bytes);
                    nfs.rename(&dir, name.as_bytes(), &dir, b"last").done();
                }
            });
        }
    });
    assert_eq!(fixture.names().len(), 8);
}
