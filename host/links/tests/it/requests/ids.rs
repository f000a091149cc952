//! Exhausted ids, dropped calls, and memory that belongs to a call.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use std::future::Future;

use proptest::prelude::*;
use tombolo_host_links::client::{FRAME_MAX, LineError, Spans};
use tombolo_host_runtime::task;
use tombolo_shm::doorbell::Mode;

use crate::requests::test_host::{ECHO, HOLD, LATER, TestHost, body, eventually, frame};

#[test]
fn exhausted_ids_queue_calls_in_order() {
    for mode in [Mode::Poll, Mode::Event, Mode::Adaptive] {
        let host = TestHost::new(8, mode, Mode::Event);
        let calls: Vec<_> = (0..40)
            .map(|number| host.line.call(HOLD, body(number), |writer| writer.put(&frame(number, 100))))
            .collect();
        eventually("the server has what can be sent", || host.session.held.lock().unwrap().len() == 8);
        assert_eq!(host.line.counts().queued, 32);
        for (number, call) in calls.into_iter().enumerate() {
            // Each answer lets one more call proceed. Each is answered before its caller polls it.
            eventually("the next one came", || !host.session.held.lock().unwrap().is_empty());
            let first = host.session.held.lock().unwrap().remove(0);
            assert_eq!(first.body, body(number as u64), "in order");
            first.send();
            let reply = call.wait().expect("an answer");
            assert_eq!(reply.body, body(number as u64));
            assert!(*reply.frame == *frame(number as u64, 100));
        }
        assert_eq!((host.line.counts().queued, host.line.counts().in_flight), (0, 0));
    }
}

#[test]
fn queued_calls_go_on_without_being_polled() {
    let host = TestHost::new(8, Mode::Adaptive, Mode::Event);
    let calls: Vec<_> = (0..24).map(|number| host.line.call(ECHO, body(number), |_| {})).collect();
    // Backwards: all other answers precede the one awaited.
    for (number, call) in calls.into_iter().enumerate().rev() {
        assert_eq!(call.wait().expect("an answer").body, body(number as u64));
    }
}

#[test]
fn dropped_call_retains_id_until_answered() {
    let host = TestHost::new(8, Mode::Adaptive, Mode::Event);
    let span = host.line.in_area().take(4096).expect("room");
    let free_bytes = host.line.in_area().free_bytes();
    drop(host.line.call_with(HOLD, body(1), Spans::from(span), |_| {}));
    drop(host.line.call(HOLD, body(2), |_| {}));
    eventually("both are there", || host.session.held.lock().unwrap().len() == 2);
    for number in 0..100 {
        host.line.call(ECHO, body(number), |_| {}).wait().expect("an answer");
    }
    assert_eq!(host.line.counts().in_flight, 2);
    assert_eq!(host.line.in_area().free_bytes(), free_bytes, "the server may still write there");
    host.session.held.lock().unwrap().drain(..).for_each(|held| held.send());
    host.line.call(ECHO, body(0), |_| {}).wait().expect("an answer");
    assert_eq!(host.line.counts().in_flight, 0);
    assert_eq!(host.line.in_area().free_bytes(), free_bytes + 4096);
}

#[test]
fn spans_come_back_with_the_answer() {
    let host = TestHost::new(8, Mode::Adaptive, Mode::Adaptive);
    let span = host.line.out_area().take(100).expect("room");
    let offset = span.offset();
    let reply = host.line.call_with(ECHO, body(1), Spans::from(span), |_| {}).wait().expect("an answer");
    assert_eq!(reply.spans.at(0).map(|span| (span.offset(), span.len())), Some((offset, 100)));
}

#[test]
fn arguments_that_do_not_fit_fail_alone() {
    let host = TestHost::new(8, Mode::Adaptive, Mode::Adaptive);
    let long = vec![1; FRAME_MAX + 1];
    for _ in 0..20 {
        let failed = host.line.call(ECHO, body(1), |writer| writer.put(&long)).wait().err();
        assert_eq!(failed, Some(LineError::TooLong { len_bytes: FRAME_MAX + 1 }));
    }
    let fits = frame(3, FRAME_MAX);
    let reply = host.line.call(ECHO, body(1), |writer| writer.put(&fits)).wait().expect("an answer");
    assert!(*reply.frame == *fits);
    assert_eq!(host.line.counts().calls, 1, "nothing else was sent");
    assert_eq!(host.line.counts().in_flight, 0);
}

/// Ways in which the test uses a call.
#[derive(Clone, Copy, Debug)]
enum Use {
    Wait,
    Look,
    Spawn,
    Drop,
    DropPolled,
}

fn uses() -> impl Strategy<Value = Vec<(Use, bool, usize)>> {
    let how = prop_oneof![
        3 => Just(Use::Wait),
        1 => Just(Use::Look),
        3 => Just(Use::Spawn),
        1 => Just(Use::Drop),
        1 => Just(Use::DropPolled)
    ];
    prop::collection::vec((how, any::<bool>(), 0usize..200), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Calls are awaited or dropped in any way and answered in any order: each gets its own answer, and
    /// finally no id is in use.
    #[test]
    fn nothing_is_lost_or_mixed_up(
        threads in prop::collection::vec(uses(), 1..4),
        mode in prop_oneof![Just(Mode::Poll), Just(Mode::Event), Just(Mode::Adaptive)],
        answerers in 1usize..3,
    ) {
        let host = TestHost::new(8, mode, Mode::Adaptive);
        let _answerers = host.session.later.start(answerers);
        let spawned = Arc::new(AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for (thread, calls) in threads.iter().enumerate() {
                let (line, spawned) = (&host.line, &spawned);
                scope.spawn(move || {
                    for (call, &(how, later, len)) in calls.iter().enumerate() {
                        let number = (thread << 32 | call) as u64;
                        let sent = frame(number, len);
                        let kind = if later { LATER } else { ECHO };
                        let mut made = line.call(kind, body(number), |writer| writer.put(&sent));
                        let check = move |reply: tombolo_host_links::client::Reply| {
                            assert_eq!(reply.body, body(number));
                            assert!(*reply.frame == *sent);
                        };
                        match how {
                            Use::Wait => check(made.wait().expect("an answer")),
                            Use::Look => made.now().into_iter().for_each(|reply| check(reply.expect("an answer"))),
                            Use::Drop => drop(made),
                            Use::DropPolled => {
                                let mut context = std::task::Context::from_waker(std::task::Waker::noop());
                                let _ = std::pin::Pin::new(&mut made).poll(&mut context);
                            }
                            Use::Spawn => {
                                spawned.fetch_add(1, Ordering::SeqCst);
                                let spawned = spawned.clone();
                                task::spawn(async move {
                                    check(made.await.expect("an answer"));
                                    spawned.fetch_sub(1, Ordering::SeqCst);
                                });
                            }
                        }
                    }
                });
            }
        });
        eventually("all tasks are done", || spawned.load(Ordering::SeqCst) == 0);
        // Dropped calls are answered too, and the next caller takes those answers out.
        eventually("nothing is out", || {
            host.line.call(ECHO, body(0), |_| {}).wait().expect("an answer");
            host.line.counts().in_flight == 0
        });
        prop_assert!(!host.line.is_lost());
        let counts = host.line.counts();
        prop_assert_eq!((counts.calls, counts.queued), (counts.answers, 0));
    }
}
