//! Cost of an idle link without a doorbell.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use super::process_time;
use super::test_host::{ECHO, HOLD, TestHost, body, found, layout, silent_ends};
use tombolo_shm::doorbell::Mode;

#[test]
fn slow_call_without_doorbell_uses_little_processor_time() {
    let _alone = crate::alone();
    let host = TestHost::over(silent_ends(layout(8)), Mode::Event, Mode::Event);
    let mut call = pin!(host.line.call(HOLD, body(5), |_| {}));
    let mut context = Context::from_waker(Waker::noop());
    assert!(call.as_mut().poll(&mut context).is_pending());
    let held = found("the request", || host.session.held.lock().unwrap().pop());
    let (before, span) = (process_time(), Duration::from_millis(500));
    thread::sleep(span);
    let took = process_time() - before;
    assert!(took < span * 3 / 10, "{took:?} of {span:?}");
    // Answers still arrive.
    for _ in 0..20 {
        host.line.call(ECHO, body(6), |_| {}).wait().expect("an answer");
    }
    held.send();
    loop {
        match call.as_mut().poll(&mut context) {
            Poll::Ready(reply) => break assert_eq!(reply.expect("an answer").body, body(5)),
            Poll::Pending => thread::yield_now(),
        }
    }
}
