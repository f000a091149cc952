//! The in-flight limit, and waiting for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use tombolo_host_rpc::client::{InFlight, Options, Pending};

use super::common::*;
use super::script::*;

fn fixed(count: u32) -> Options {
    Options { in_flight: InFlight::Fixed(count), ..Options::default() }
}

fn writes(script: &Script, count: u8) -> Vec<Pending> {
    (0..count).map(|fill| write(&script.client, vec![fill; 8])).collect()
}

#[derive(Default)]
struct CountingWake(AtomicUsize);

impl Wake for CountingWake {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn bulk_calls_wait_in_order_and_others_pass_them() {
    let (mut script, line, _first) = Script::connected(fixed(3));
    line.calls();
    let pending = writes(&script, 10);
    let small = echo(&script.client, ECHO, b"small");
    let counts = script.client.counts();
    assert_eq!((counts.outstanding, counts.waiting, counts.in_flight), (12, 7, 3));
    let mut order = Vec::new();
    let mut calls = line.calls();
    assert_eq!(calls.iter().map(|call| call.procedure).collect::<Vec<_>>(), [WRITE, WRITE, WRITE, ECHO]);
    while !calls.is_empty() {
        let call = calls.remove(0);
        order.extend((call.procedure == WRITE).then(|| call.arguments[4]));
        script.bring(&line, &call.reply(b""));
        calls.extend(line.calls());
        assert!(calls.iter().filter(|call| call.procedure == WRITE).count() <= 3);
    }
    assert_eq!(order, (0..10).collect::<Vec<_>>());
    assert!(small.is_ready() && pending.iter().all(Pending::is_ready));
}

#[test]
fn small_call_overtakes_queued_bulk_calls() {
    let (mut script, line, _first) = Script::connected(fixed(100));
    line.calls();
    line.set_room(30);
    let _pending = writes(&script, 50);
    let _small = echo(&script.client, ECHO, b"small");
    script.take_more(&line, usize::MAX);
    let calls = line.calls();
    let place = calls.iter().position(|call| call.procedure == ECHO);
    assert!(place.is_some_and(|place| place <= 17), "{place:?} of {}", calls.len());
    assert_eq!(calls.len(), 51);
}

#[test]
fn permit_waiters_wake_when_quarter_is_free() {
    let (mut script, line, _first) = Script::connected(fixed(8));
    line.calls();
    assert!(script.client.has_permit());
    let wakes = Arc::new(CountingWake::default());
    let waker = Waker::from(wakes.clone());
    let mut context = Context::from_waker(&waker);
    let mut permit = std::pin::pin!(script.client.permit());
    let pending = writes(&script, 8);
    assert!(!script.client.has_permit());
    assert!(permit.as_mut().poll(&mut context).is_pending());
    let calls = line.calls();
    script.bring(&line, &calls[0].reply(b""));
    assert!(script.client.has_permit() && wakes.0.load(Ordering::SeqCst) == 0);
    assert!(permit.as_mut().poll(&mut context).is_pending(), "there is little of it");
    script.bring(&line, &calls[1].reply(b""));
    assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
    assert!(permit.as_mut().poll(&mut context).is_ready());
    drop(pending);
}

#[test]
fn the_limit_changes_while_calls_wait() {
    let (mut script, line, _first) = Script::connected(fixed(1));
    line.calls();
    let _pending = writes(&script, 10);
    assert_eq!(line.calls().len(), 1);
    script.client.set_in_flight(InFlight::Fixed(6));
    script.turn();
    assert_eq!((line.calls().len(), script.client.in_flight()), (5, 6));
    script.client.set_in_flight(InFlight::Fixed(2));
    script.turn();
    let counts = script.client.counts();
    assert_eq!((line.calls().len(), counts.outstanding - counts.waiting), (0, 7), "what is out stays out");
}

#[test]
fn calls_go_to_the_connection_with_least_to_do() {
    let options = Options { connections: 3, ..fixed(100) };
    let mut script = Script::new(tombolo_host_rpc::client::Transport::Tcp, options);
    let _large = write(&script.client, vec![1; 100_000]);
    let _pending = writes(&script, 60);
    script.turn();
    assert_eq!(script.line_count(), 3);
    for index in 0..3 {
        let line = script.line(index);
        script.connect(&line);
    }
    let counts: Vec<_> = (0..3).map(|index| script.line(index).calls().len()).collect();
    assert_eq!(counts, [1, 30, 30]);
}

#[test]
fn nothing_small_waits_behind_calls_that_move_much() {
    let options = Options { connections: 2, ..fixed(1) };
    let mut script = Script::new(tombolo_host_rpc::client::Transport::Tcp, options);
    let _large: Vec<_> = (0..3).map(|_| write(&script.client, vec![1; 200_000])).collect();
    let _small = writes(&script, 5);
    script.turn();
    let first = script.line(0);
    script.connect(&first);
    let sizes: Vec<_> = first.calls().iter().map(|call| call.arguments.len()).collect();
    assert!(sizes.len() == 5 && sizes.iter().all(|size| *size < 100_000), "{sizes:?}");
    let counts = script.client.counts();
    assert_eq!((counts.outstanding, counts.waiting), (8, 2), "the limit holds for those that move much");
}

#[test]
fn unanswered_call_to_live_server_is_retransmitted() {
    let (mut script, line, first) = Script::connected(Options::default());
    let call = line.calls().remove(0);
    for _ in 0..7 {
        script.pass(Duration::from_secs(10));
        let other = echo(&script.client, ECHO, b"alive");
        let calls = line.calls();
        let call = calls.last().expect("a call");
        script.bring(&line, &call.reply(b""));
        assert!(other.is_ready());
        if calls.len() == 2 {
            assert_eq!(calls[0].xid, 0xffff_fff0, "the same number");
            script.bring(&line, &calls[0].reply(b"remembered"));
        }
    }
    assert_eq!(first.wait().expect("a reply").results, b"remembered");
    assert_eq!((script.line_count(), script.client.counts().retransmissions), (1, 1));
    // The answer to the first transmission may still arrive.
    script.bring(&line, &call.reply(b"late"));
    assert_eq!(script.client.counts().unknown_replies, 1);
}

#[test]
fn sleepers_wake_when_it_is_time() {
    let (mut script, _line, _first) = Script::connected(Options::default());
    let wakes = Arc::new(CountingWake::default());
    let waker = Waker::from(wakes.clone());
    let mut context = Context::from_waker(&waker);
    let mut long = std::pin::pin!(script.client.sleep(Duration::from_millis(20)));
    let mut short = std::pin::pin!(script.client.sleep(Duration::from_millis(10)));
    let mut given_up = Box::pin(script.client.sleep(Duration::from_millis(5)));
    assert!(long.as_mut().poll(&mut context).is_pending());
    assert!(short.as_mut().poll(&mut context).is_pending());
    assert!(given_up.as_mut().poll(&mut context).is_pending());
    drop(given_up);
    script.pass(Duration::from_millis(9));
    assert_eq!(wakes.0.load(Ordering::SeqCst), 0);
    script.pass(Duration::from_millis(1));
    assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
    assert!(short.as_mut().poll(&mut context).is_ready() && long.as_mut().poll(&mut context).is_pending());
    script.pass(Duration::from_millis(10));
    assert!(long.as_mut().poll(&mut context).is_ready());
}
