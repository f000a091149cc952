//! Requests for whose answers the server does not ring.

use tombolo_host_links::client::Spans;
use tombolo_host_runtime::task;
use tombolo_shm::doorbell::Mode;

use crate::requests::test_host::{ECHO, HOLD, QUIET, TestHost, body, eventually};

#[test]
fn a_quiet_answer_wakes_no_thread() {
    let host = TestHost::new(8, Mode::Event, Mode::Event);
    let held = host.line.call(HOLD, body(1), |_| {});
    task::spawn(async move { drop(held.await.expect("an answer")) });
    eventually("the receiver thread sleeps", || host.line.counts().sleeps > 0);
    eventually("the request is held", || host.session.held.lock().unwrap().len() == 1);
    let call = host.line.try_call_with(QUIET, body(2), Spans::none(), |_| {}).expect("an id is free");
    eventually("it is answered", || host.server.counts().answers == 1);
    assert_eq!(host.server.counts().rings, 0);
    eventually("it is received", || {
        host.line.receive();
        call.received() == Some((QUIET, body(2)))
    });
    drop(call);
    host.session.held.lock().unwrap().drain(..).for_each(|held| held.send());
    eventually("the server has rung", || host.server.counts().rings == 1);
    eventually("all ids are free", || host.line.counts().in_flight == 0);
}

#[test]
fn quiet_answers_come_with_later_ones() {
    let host = TestHost::new(8, Mode::Event, Mode::Event);
    for number in 0..40 {
        let quiet = host.line.try_call_with(QUIET, body(number), Spans::none(), |_| {}).expect("an id");
        let loud = host.line.call(ECHO, body(number), |_| {});
        assert_eq!(loud.wait().expect("an answer").body, body(number));
        assert_eq!(quiet.received(), Some((QUIET, body(number))), "it was answered before");
        assert_eq!(quiet.wait().expect("the same answer").body, body(number));
    }
}

#[test]
fn nothing_is_sent_at_once_without_an_id() {
    let host = TestHost::new(8, Mode::Event, Mode::Event);
    let calls: Vec<_> = (0..8).map(|number| host.line.call(HOLD, body(number), |_| {})).collect();
    assert!(host.line.try_call_with(QUIET, body(9), Spans::none(), |_| {}).is_none());
    eventually("the requests are held", || host.session.held.lock().unwrap().len() == calls.len());
    host.session.held.lock().unwrap().drain(..).for_each(|held| held.send());
    calls.into_iter().for_each(|call| drop(call.wait().expect("an answer")));
    assert_eq!((host.line.counts().calls, host.line.counts().queued_total), (8, 0));
}

#[test]
fn answers_are_received_after_the_end_of_the_link() {
    let host = TestHost::new(8, Mode::Event, Mode::Event);
    let call = host.line.try_call_with(QUIET, body(1), Spans::none(), |_| {}).expect("an id is free");
    eventually("it is answered", || host.server.counts().answers == 1);
    host.line.cut(tombolo_host_links::EndReason::Died);
    assert_eq!(call.received(), None);
    host.line.receive();
    assert_eq!(call.received(), Some((QUIET, body(1))));
}
