//! Honest peers: every call gets its own answer, however it is awaited.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tombolo_host_links::client::Line;
use tombolo_host_runtime::task;
use tombolo_shm::address::BaseTable;
use tombolo_shm::doorbell::Mode;
use tombolo_shm::link::{DoorbellKind, Ends};

use crate::requests::test_host::{
    ECHO, LATER, TestHost, belled_ends, body, frame, layout, sealed_ends, silent_ends,
};

const MODES: [Mode; 3] = [Mode::Poll, Mode::Event, Mode::Adaptive];

#[test]
fn each_call_gets_its_own_answer_in_every_mode() {
    for client in MODES {
        for server in MODES {
            let host = TestHost::new(8, client, server);
            for number in 0..200 {
                let sent = frame(number, (number as usize * 37) % 4097);
                let reply = host.line.call(ECHO, body(number), |writer| writer.put(&sent)).wait();
                let reply = reply.expect("an answer");
                assert_eq!((reply.kind, reply.body), (ECHO, body(number)), "{client} {server}");
                assert!(*reply.frame == *sent, "{client} {server}: {number}");
            }
            let counts = host.line.counts();
            assert_eq!((counts.calls, counts.answers, counts.in_flight), (200, 200, 0));
        }
    }
}

#[test]
fn bulk_memory_carries_data_both_ways() {
    let layout = layout(8);
    let (client, ends) = sealed_ends(layout);
    let server = BaseTable::of_link(&ends);
    let host = TestHost::over((client, ends), Mode::Adaptive, Mode::Adaptive);
    let (out, into) = (host.line.out_area(), host.line.in_area());
    let (there, back) = (out.take(100_000).expect("room"), into.take(100_000).expect("room"));
    let sent = frame(5, 100_000);
    assert_eq!(host.line.out_sink(&there).expect("ours").write_at(0, &sent), sent.len());
    let source = server.source(host.line.out_address(&there), 100_000).expect("a reference");
    let sink = server.sink(host.line.in_address(&back), 100_000).expect("a reference");
    assert_eq!(source.copy_to_sink(&sink), sent.len());
    assert!(host.line.in_source(&back).expect("theirs").to_vec(sent.len()) == sent);
}

fn run(line: &Line, thread: u64, calls: u64, kinds: &[u32]) {
    for call in 0..calls {
        let number = thread << 32 | call;
        let sent = frame(number, (number as usize * 13) % 300);
        let kind = kinds[call as usize % kinds.len()];
        let reply = line.call(kind, body(number), |writer| writer.put(&sent)).wait().expect("an answer");
        assert_eq!(reply.body, body(number));
        assert!(*reply.frame == *sent);
    }
}

/// In private memory, in mapped memory, without a doorbell, and with a bell.
#[test]
fn many_threads_with_answers_out_of_order() {
    for mode in MODES {
        let all = [
            (Ends::in_memory(layout(16)), 400),
            (sealed_ends(layout(8)), 60),
            (silent_ends(layout(8)), 60),
            (belled_ends(layout(8)), 60),
        ];
        for (ends, calls) in all {
            let doorbell = ends.0.doorbell;
            let host = TestHost::over(ends, mode, Mode::Adaptive);
            let _answerers = host.session.later.start(2);
            std::thread::scope(|scope| {
                for thread in 0..8 {
                    let line = &host.line;
                    scope.spawn(move || run(line, thread, calls, &[ECHO, LATER, LATER]));
                }
            });
            assert_eq!(host.line.counts().in_flight, 0);
            assert_eq!(host.server.counts().requests, 8 * calls);
            assert!(doorbell != DoorbellKind::Silent || host.line.counts().rings == 0);
        }
    }
}

#[test]
fn futures_are_woken_by_the_receiving_thread() {
    for mode in MODES {
        let host = TestHost::new(8, mode, Mode::Event);
        let _answerers = host.session.later.start(1);
        let (done, all) = (Arc::new(AtomicUsize::new(0)), 3_000);
        let (sender, receiver) = std::sync::mpsc::channel();
        for number in 0..all {
            let call = host.line.call(if number % 3 == 0 { LATER } else { ECHO }, body(number), |_| {});
            let (done, sender) = (done.clone(), sender.clone());
            task::spawn(async move {
                assert_eq!(call.await.expect("an answer").body, body(number));
                if done.fetch_add(1, Ordering::Relaxed) + 1 == all as usize {
                    sender.send(()).expect("a receiver");
                }
            });
        }
        receiver.recv_timeout(std::time::Duration::from_secs(60)).expect("all are answered");
    }
}
