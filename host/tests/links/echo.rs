//! Honest peers: every call gets its own answer, however it is waited for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tombolo_host::links::client::Line;
use tombolo_host::task;
use tombolo_shm::bell::Mode;

use crate::bed::{Bed, ECHO, LATER, body, frame};

const MODES: [Mode; 3] = [Mode::Poll, Mode::Event, Mode::Adaptive];

#[test]
fn each_call_gets_its_own_answer_in_every_mode() {
    for client in MODES {
        for server in MODES {
            let bed = Bed::new(8, client, server);
            for number in 0..200 {
                let sent = frame(number, (number as usize * 37) % 4097);
                let reply = bed.line.call(ECHO, body(number), |writer| writer.put(&sent)).wait();
                let reply = reply.expect("an answer");
                assert_eq!((reply.kind, reply.body), (ECHO, body(number)), "{client} {server}");
                assert!(*reply.frame == *sent, "{client} {server}: {number}");
            }
            let counts = bed.line.counts();
            assert_eq!((counts.calls, counts.answers, counts.in_flight), (200, 200, 0));
        }
    }
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

#[test]
fn many_threads_with_answers_out_of_order() {
    for mode in MODES {
        let bed = Bed::new(16, mode, Mode::Adaptive);
        let answerers = bed.session.later.start(2);
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let line = &bed.line;
                scope.spawn(move || run(line, thread, 400, &[ECHO, LATER, LATER]));
            }
        });
        bed.session.later.stop();
        answerers.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!(bed.line.counts().in_flight, 0);
        assert_eq!(bed.server.counts().requests, 8 * 400);
    }
}

#[test]
fn futures_are_woken_by_whoever_receives() {
    for mode in MODES {
        let bed = Bed::new(8, mode, Mode::Event);
        let answerers = bed.session.later.start(1);
        let (done, all) = (Arc::new(AtomicUsize::new(0)), 3_000);
        let (sender, receiver) = std::sync::mpsc::channel();
        for number in 0..all {
            let call = bed.line.call(if number % 3 == 0 { LATER } else { ECHO }, body(number), |_| {});
            let (done, sender) = (done.clone(), sender.clone());
            task::spawn(async move {
                assert_eq!(call.await.expect("an answer").body, body(number));
                if done.fetch_add(1, Ordering::Relaxed) + 1 == all as usize {
                    sender.send(()).expect("somebody waits");
                }
            });
        }
        receiver.recv_timeout(std::time::Duration::from_secs(60)).expect("all are answered");
        bed.session.later.stop();
        answerers.into_iter().for_each(|thread| thread.join().expect("no panic"));
    }
}
