//! Calls that end without a reply: interrupts, time-outs, the end of the client.

use std::time::Duration;

use tombolo_core::Interrupt;
use tombolo_host_rpc::client::{
    Call, CallError, InFlight, Interrupts, Options, Pending, ReceiveBuffer, Recovery, Transport,
};
use tombolo_mem::{Buffer, Source};
use tombolo_sys::Errno;
use tombolo_wire_rpc::Credential;

use super::common::*;
use super::script::*;

const SECOND: Duration = Duration::from_secs(1);

fn always() -> Options {
    Options { interrupts: Interrupts::Always, in_flight: InFlight::Fixed(4), ..Options::default() }
}

fn interruptible(script: &Script, interrupt: &Interrupt) -> Pending {
    let call = Call { interrupt: interrupt.clone(), ..Call::new(ECHO, Credential::None) };
    script.client.call(call, |xdr| {
        xdr.u32(1);
    })
}

fn interruptible_write(script: &Script, interrupt: &Interrupt, source: Source) -> Pending {
    let interrupt = interrupt.clone();
    let len = source.len() as u32;
    let call = Call { interrupt, data: Some(source), bulk: true, ..Call::new(WRITE, Credential::None) };
    script.client.call(call, |xdr| {
        xdr.u32(len);
    })
}

fn is_interrupted(pending: Pending) -> bool {
    pending.is_ready() && matches!(pending.wait(), Err(CallError::Interrupted { .. }))
}

#[test]
fn interrupted_call_ends_and_late_reply_is_dropped() {
    let (mut script, line, _first) = Script::connected(always());
    let interrupt = Interrupt::new();
    let pending = interruptible(&script, &interrupt);
    let call = line.calls().remove(1);
    script.turn();
    assert!(!pending.is_ready());
    interrupt.raise();
    script.turn();
    assert!(is_interrupted(pending));
    script.bring(&line, &call.reply(b"late"));
    assert_eq!(script.client.counts().unknown_replies, 1);
    // A call whose interrupt was raised before.
    let pending = interruptible(&script, &interrupt);
    script.turn();
    assert!(is_interrupted(pending));
}

#[test]
fn interrupted_queued_call_is_never_sent() {
    let options = Options { in_flight: InFlight::Fixed(1), ..always() };
    let (mut script, line, _first) = Script::connected(options);
    line.calls();
    let ahead = write(&script.client, vec![1; 10]);
    let interrupt = Interrupt::new();
    let mut buffer = Buffer::new(10);
    let waiting = interruptible_write(&script, &interrupt, buffer.source(0..10));
    let behind = write(&script.client, vec![3; 10]);
    assert_eq!(script.client.counts().waiting, 2);
    interrupt.raise();
    script.turn();
    assert!(is_interrupted(waiting) && buffer.as_slice().is_some());
    let calls = line.calls();
    assert_eq!(calls.len(), 1);
    script.bring(&line, &calls[0].reply(b""));
    let calls = line.calls();
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0].arguments[4..14], [3; 10]);
    script.bring(&line, &calls[0].reply(b""));
    assert!(ahead.wait().is_ok() && behind.wait().is_ok());
    assert_eq!((script.client.counts().outstanding, script.client.counts().waiting), (1, 0));
}

#[test]
fn partly_sent_record_is_not_completed_from_returned_memory() {
    for room in [1, 50, 200, 5000] {
        let (mut script, line, _first) = Script::connected(always());
        line.calls();
        let interrupt = Interrupt::new();
        let mut buffer = Buffer::new(10_000);
        line.set_room(room);
        let pending = interruptible_write(&script, &interrupt, buffer.source(0..10_000));
        let after = echo(&script.client, ECHO, b"after");
        interrupt.raise();
        script.turn();
        assert!(is_interrupted(pending) && buffer.as_slice().is_some());
        assert!(line.is_shut_down());
        let next = script.reconnected(SECOND);
        let calls = next.calls();
        assert_eq!(calls.iter().map(|call| call.procedure).collect::<Vec<_>>(), [1, ECHO]);
        script.bring(&next, &calls[1].reply(b"fine"));
        assert!(after.wait().is_ok());
    }
}

#[test]
fn partly_sent_record_without_data_is_completed() {
    let (mut script, line, _first) = Script::connected(always());
    line.calls();
    let interrupt = Interrupt::new();
    line.set_room(10);
    let pending = interruptible(&script, &interrupt);
    let after = echo(&script.client, ECHO, b"after");
    interrupt.raise();
    script.turn();
    assert!(is_interrupted(pending));
    script.take_more(&line, 10_000);
    let calls = line.calls();
    assert_eq!((calls.len(), script.line_count()), (2, 1));
    script.bring(&line, &calls[0].reply(b"late"));
    script.bring(&line, &calls[1].reply(b"fine"));
    assert_eq!(after.wait().expect("a reply").results, b"fine");
}

#[test]
fn interrupted_unsent_call_is_removed_from_batch() {
    let (mut script, line, _first) = Script::connected(always());
    line.calls();
    let interrupt = Interrupt::new();
    line.set_room(0);
    let (mut buffer, before) = (Buffer::new(100), write(&script.client, vec![1; 100]));
    let pending = interruptible_write(&script, &interrupt, buffer.source(0..100));
    let after = write(&script.client, vec![2; 100]);
    interrupt.raise();
    script.turn();
    assert!(is_interrupted(pending) && buffer.as_slice().is_some());
    script.take_more(&line, 10_000);
    let calls = line.calls();
    assert_eq!((calls.len(), script.line_count()), (2, 1));
    calls.iter().for_each(|call| script.bring(&line, &call.reply(b"")));
    assert!(before.wait().is_ok() && after.wait().is_ok());
}

#[test]
fn interrupted_read_does_not_write_its_buffer() {
    for cut in [30, 100, 5000, 60_000, 99_000] {
        let (mut script, line, _first) = Script::connected(always());
        let interrupt = Interrupt::new();
        let mut buffer = Buffer::new(100_000);
        let receive_buffer = Some(ReceiveBuffer { sink: buffer.sink(0..100_000), find: find_data });
        let call = Call { receive_buffer, interrupt: interrupt.clone(), ..Call::new(READ, Credential::None) };
        let pending = script.client.call(call, |xdr| {
            xdr.u32(100_000).u32(1);
        });
        let after = echo(&script.client, ECHO, b"after");
        let calls = line.calls();
        let reply = calls[1].reply(&data_results(&pattern(1, 100_000)));
        script.bring(&line, &reply[..cut]);
        interrupt.raise();
        script.turn();
        assert!(is_interrupted(pending));
        buffer.as_mut_slice().expect("it was let go").fill(0xee);
        script.bring(&line, &reply[cut..]);
        script.bring(&line, &calls[2].reply(b"fine"));
        assert_eq!(after.wait().expect("a reply").results, b"fine");
        assert!(buffer.as_slice().expect("still").iter().all(|byte| *byte == 0xee));
    }
}

#[test]
fn default_interrupt_waits_for_silent_server() {
    let (mut script, line, _first) = Script::connected(Options::default());
    let interrupt = Interrupt::new();
    let pending = interruptible(&script, &interrupt);
    line.calls();
    script.pass(SECOND);
    interrupt.raise();
    // The server responds, but not to this call.
    script.bring(&line, &framed(&message(1, b"")));
    script.pass(SECOND / 2);
    assert!(!pending.is_ready());
    script.pass(SECOND * 2);
    assert!(is_interrupted(pending));
    // An interrupt raised while the server is already silent, of a call made then.
    let late = Interrupt::new();
    let pending = interruptible(&script, &late);
    script.turn();
    late.raise();
    script.turn();
    assert!(is_interrupted(pending));
}

#[test]
fn interrupt_ends_overdue_call_of_responsive_server() {
    let (mut script, line, _first) = Script::connected(Options::default());
    let interrupt = Interrupt::new();
    let pending = interruptible(&script, &interrupt);
    line.calls();
    interrupt.raise();
    for half_second in 0..6 {
        let other = echo(&script.client, ECHO, b"other");
        script.turn();
        let calls = line.calls();
        script.bring(&line, &calls.last().expect("the other call").reply(b"fine"));
        assert!(other.wait().is_ok());
        assert_eq!(pending.is_ready(), half_second >= 4, "after {half_second} half seconds");
        script.pass(SECOND / 2);
    }
    assert!(is_interrupted(pending));
}

#[test]
fn an_interrupt_that_is_never_heeded() {
    let options = Options { interrupts: Interrupts::Never, ..Options::default() };
    let (mut script, line, _first) = Script::connected(options);
    let interrupt = Interrupt::new();
    let pending = interruptible(&script, &interrupt);
    let calls = line.calls();
    interrupt.raise();
    script.pass(SECOND * 30);
    assert!(!pending.is_ready());
    script.bring(&line, &calls[1].reply(b"fine"));
    assert!(pending.wait().is_ok());
}

#[test]
fn a_hard_call_waits_for_ever() {
    let (mut script, line, first) = Script::connected(Options::default());
    line.calls();
    for index in 1..100 {
        let next = script.reconnected(SECOND * 71);
        assert_eq!((script.line_count(), next.calls().len()), (index + 1, 1));
    }
    script.refuse(Some(Errno::CONNREFUSED));
    script.pass(SECOND * 3600);
    script.refuse(None);
    let last = script.reconnected(SECOND * 11);
    let call = last.calls().remove(0);
    script.bring(&last, &call.reply(b"at last"));
    assert_eq!(first.wait().expect("a reply").results, b"at last");
}

#[test]
fn a_connection_that_only_takes_is_made_anew() {
    let (mut script, line, _first) = Script::connected(Options::default());
    for second in 0..59 {
        let _pending = echo(&script.client, ECHO, b"unanswered");
        assert!(!line.is_shut_down(), "after {second} s");
        script.pass(SECOND);
    }
    script.pass(SECOND * 2);
    assert!(line.is_shut_down());
    // A peer that accepts data after its socket was full is alive, if slow.
    let (mut script, line, _first) = Script::connected(Options::default());
    line.set_room(0);
    let _pending = write(&script.client, vec![7; 100_000]);
    for _ in 0..10 {
        script.pass(SECOND * 50);
        script.take_more(&line, 1000);
    }
    assert!(!line.is_shut_down());
}

#[test]
fn a_soft_call_fails_after_its_time_outs() {
    let options = Options { recovery: Recovery::Soft, in_flight: InFlight::Fixed(1), ..Options::default() };
    let (mut script, line, first) = Script::connected(options);
    let call = line.calls().remove(0);
    script.bring(&line, &call.reply(b""));
    assert!(first.wait().is_ok());
    // A server that answered before may be restarting: refusals do not end a call early.
    let (sent, waiting) = (write(&script.client, vec![1; 10]), write(&script.client, vec![2; 10]));
    script.close(&line);
    script.refuse(Some(Errno::CONNREFUSED));
    script.pass(SECOND * 179);
    assert!(!sent.is_ready() && !waiting.is_ready());
    script.pass(SECOND * 2);
    let error = sent.wait().expect_err("given up");
    assert!(matches!(error, CallError::Unreachable { source: Errno::CONNREFUSED, .. }), "{error}");
    script.pass(SECOND * 181);
    assert!(waiting.wait().is_err());
    assert_eq!(script.client.counts().outstanding, 0);
}

#[test]
fn a_soft_call_to_a_silent_server_times_out() {
    let options = Options { recovery: Recovery::Soft, ..Options::default() };
    let (mut script, _line, first) = Script::connected(options);
    for index in 1..3 {
        script.reconnected(SECOND * 61);
        assert_eq!(script.line_count(), index + 1);
    }
    script.pass(SECOND * 61);
    assert!(matches!(first.wait(), Err(CallError::TimedOut { .. } | CallError::Unreachable { .. })));
}

#[test]
fn datagrams_are_sent_again_later_each_time() {
    let (mut script, line, pending) = Script::connected_over(Transport::Udp, Options::of(Transport::Udp));
    let call = line.calls().remove(0);
    let ms = Duration::from_millis;
    for wait in [1100, 2200, 4400, 8800] {
        script.pass(ms(wait - 10));
        assert_eq!(line.calls(), []);
        script.pass(ms(10));
        assert_eq!(line.calls(), std::slice::from_ref(&call));
    }
    script.bring(&line, &message(call.xid, b"hello"));
    assert!(pending.wait().is_ok());
    let counts = script.client.counts();
    assert_eq!((counts.retransmissions, counts.replies), (4, 1));
    assert_eq!(counts.round_trip, Duration::ZERO, "which of them was answered is not known");
    // Calls answered at first transmission yield samples.
    for _ in 0..20 {
        let pending = echo(&script.client, ECHO, b"again");
        let call = line.calls().remove(0);
        script.pass(ms(5));
        script.bring(&line, &message(call.xid, b""));
        assert!(pending.wait().is_ok());
    }
    let pending = echo(&script.client, ECHO, b"lost");
    line.calls();
    script.pass(ms(201));
    assert_eq!(line.calls().len(), 1);
    drop(pending);
}

#[test]
fn a_soft_datagram_is_given_up_after_its_retries() {
    let options = Options { recovery: Recovery::Soft, ..Options::of(Transport::Udp) };
    let (mut script, line, pending) = Script::connected_over(Transport::Udp, options);
    script.pass(Duration::from_millis(1100 * 15 - 10));
    assert!(!pending.is_ready());
    script.pass(Duration::from_millis(20));
    assert!(matches!(pending.wait(), Err(CallError::TimedOut { .. })));
    assert_eq!(line.calls().len(), 4);
}

#[test]
fn the_last_client_ends_what_is_outstanding() {
    let (script, line, first) = Script::connected(always());
    line.set_room(3);
    let pending = write(&script.client, vec![1; 100]);
    let Script { client, mut engine, .. } = script;
    let sleep = client.sleep(SECOND);
    let clone = client.clone();
    drop(client);
    assert!(!engine.has_ended());
    drop(clone);
    engine.expire();
    assert!(engine.has_ended() && line.is_shut_down());
    for pending in [first, pending] {
        assert!(matches!(pending.wait(), Err(CallError::Ended { .. })));
    }
    let mut sleep = std::pin::pin!(sleep);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(sleep.as_mut().poll(&mut context).is_ready());
}
