//! A thread that waits for a descriptor of its own and receives meanwhile, in the receiver thread's place.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tombolo_host_links::EndReason;
use tombolo_host_runtime::joint_wait::Place;
use tombolo_host_runtime::task;
use tombolo_shm::doorbell::{Bell, BellStream, Mode};
use tombolo_shm::link::{DoorbellKind, Ends, Layout};

use crate::requests::test_host::{ECHO, HOLD, LATER, TestHost, body, eventually, layout, sealed_ends};

const LONG: Duration = Duration::from_secs(20);

fn stream() -> (UnixStream, UnixStream) {
    let (one, other) = UnixStream::pair().expect("a pair");
    [&one, &other].iter().for_each(|end| end.set_nonblocking(true).expect("nonblocking"));
    (one, other)
}

fn with_bell(ends: Ends, stream: UnixStream) -> Ends {
    let output = stream.try_clone().expect("a descriptor");
    let bell = Bell::new(Arc::new(BellStream::new(stream.into(), output.into()))).expect("a bell");
    Ends { doorbell: DoorbellKind::Bell, bell: Some(Arc::new(bell)), ..ends }
}

fn belled_ends(layout: Layout) -> (Ends, Ends) {
    let ((client, server), (ours, theirs)) = (sealed_ends(layout), stream());
    (with_bell(client, ours), with_bell(server, theirs))
}

fn host(mode: Mode) -> TestHost {
    TestHost::over(belled_ends(layout(8)), mode, Mode::Event)
}

/// Sends a request, and passes the thread that its answer is received on to `then`.
fn send(host: &TestHost, kind: u32, then: impl FnOnce(thread::ThreadId) + Send + 'static) {
    let call = host.line.call(kind, body(7), |_| {});
    task::spawn(async move {
        call.await.expect("an answer");
        then(thread::current().id());
    });
}

fn answer_held(host: &TestHost, count: usize) {
    eventually("the requests are held", || host.session.held.lock().unwrap().len() == count);
    host.session.held.lock().unwrap().drain(..).for_each(|held| held.send());
}

fn place(host: &TestHost) -> Place {
    host.line.take_place().expect("the receiver thread's place")
}

#[test]
fn thread_in_the_place_receives_while_it_waits() {
    for is_receiver_asleep in [false, true] {
        let host = host(Mode::Event);
        if is_receiver_asleep {
            send(&host, HOLD, |_| ());
            eventually("the receiver thread sleeps", || host.line.counts().sleeps > 0);
        }
        let place = place(&host);
        assert!(host.line.take_place().is_none(), "there is one");
        let (mut own, mut other) = stream();
        let (sender, received) = mpsc::channel();
        send(&host, HOLD, move |thread| {
            sender.send(thread).expect("a listener");
            other.write_all(b"x").expect("written");
        });
        thread::scope(|scope| {
            scope.spawn(|| answer_held(&host, 1 + usize::from(is_receiver_asleep)));
            place.wait_beside(own.as_fd()).expect("own work");
        });
        assert_eq!(own.read(&mut [0; 2]).expect("a byte"), 1);
        assert_eq!(received.try_recv(), Ok(thread::current().id()));
    }
}

#[test]
fn place_given_back_leaves_a_receiver() {
    let host = host(Mode::Event);
    let place = place(&host);
    let (sender, received) = mpsc::channel();
    send(&host, HOLD, move |thread| sender.send(thread).expect("a listener"));
    drop(place);
    answer_held(&host, 1);
    assert_ne!(received.recv_timeout(LONG).expect("an answer"), thread::current().id());
}

#[test]
fn end_of_link_ends_the_wait() {
    let host = host(Mode::Adaptive);
    let place = place(&host);
    let (own, _other) = stream();
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(20));
            host.line.cut(EndReason::Stopped);
        });
        assert_eq!(place.wait_beside(own.as_fd()), None);
    });
    assert!(host.line.take_place().is_none());
}

#[test]
fn blocking_call_gives_the_place_back() {
    let host = host(Mode::Event);
    let answerers = host.session.later.start(1);
    let place = place(&host);
    let begun = Instant::now();
    // With the place kept, each would be received by the receiver thread once a second.
    (0..20).for_each(|number| {
        host.line.call(LATER, body(number), |_| {}).wait().expect("an answer");
    });
    assert!(begun.elapsed() < Duration::from_secs(10));
    let (own, _other) = stream();
    assert_eq!(place.wait_beside(own.as_fd()), None, "the place is lost");
    host.session.later.stop();
    answerers.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

#[test]
fn receiver_thread_stands_in_for_a_blocked_one() {
    let host = host(Mode::Event);
    let _place = place(&host);
    let (sender, received) = mpsc::channel();
    send(&host, HOLD, move |_| sender.send(()).expect("a listener"));
    answer_held(&host, 1);
    received.recv_timeout(LONG).expect("an answer");
}

/// Callers, tasks, and a thread that takes the place and leaves it, and sends requests of its own between.
#[test]
fn every_call_is_answered_whoever_receives() {
    const WORKS: usize = 300;
    for mode in [Mode::Event, Mode::Adaptive] {
        let host = host(mode);
        let answerers = host.session.later.start(1);
        let (mut own, mut other) = stream();
        let done = AtomicUsize::new(0);
        let (sender, received) = mpsc::channel();
        thread::scope(|scope| {
            for caller in 0..2 {
                let line = &host.line;
                scope.spawn(move || {
                    for number in 0..WORKS as u64 {
                        let kind = if number % 3 == caller { LATER } else { ECHO };
                        let reply = line.call(kind, body(number), |_| {}).wait().expect("an answer");
                        assert_eq!(reply.body, body(number));
                    }
                });
            }
            scope.spawn(|| {
                let (mut place, mut work) = (None, 0);
                while work < WORKS {
                    place = place.or_else(|| host.line.take_place());
                    if let Some(place) = &place {
                        place.wait_beside(own.as_fd()).expect("the place");
                    }
                    if own.read(&mut [0]).is_err() {
                        thread::yield_now();
                        continue;
                    }
                    let sender = sender.clone();
                    send(&host, if work % 2 == 0 { LATER } else { ECHO }, move |_| {
                        sender.send(()).expect("sent")
                    });
                    work += 1;
                    place = place.filter(|_| work % 7 != 0);
                }
            });
            let done = &done;
            scope.spawn(move || {
                for _ in 0..WORKS {
                    while other.write(b"x").is_err() {
                        thread::yield_now();
                    }
                    received.recv_timeout(LONG).expect("the work is done");
                    done.fetch_add(1, SeqCst);
                }
            });
        });
        assert_eq!(done.load(SeqCst), WORKS, "{mode}");
        host.session.later.stop();
        answerers.into_iter().for_each(|thread| thread.join().expect("no panic"));
    }
}
