//! Guests that leave, return and reboot, and servers that stop.

use crate::device::{Client, ECHO, Guest, HOLD, PANIC, RELEASE, SLOW, TIMEOUT, TestHost, eventually, send};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tombolo_host_vhost::Settings;
use tombolo_vhost_driver::{DriverSettings, request};

#[test]
fn a_guest_leaves_and_the_next_one_is_served() {
    let host = TestHost::new();
    for round in 1..=20 {
        let mut guest = host.guest(DriverSettings::default());
        assert!(guest.echoes());
        // Some leave with a request under way.
        if round % 2 == 0 {
            guest.queues[0].send(&[HOLD]);
        }
        drop(guest);
        assert!(
            eventually(|| host.counts.dropped.load(Ordering::SeqCst) == round),
            "device {round} is dropped"
        );
    }
    assert_eq!(host.counts.stopped.load(Ordering::SeqCst), 20);
    assert!(eventually(|| host.server.guest_count() == 0));
}

#[test]
fn a_stopped_queue_continues_where_it_was() {
    let host = TestHost::new();
    let mut guest = host.guest(DriverSettings::default());
    for _ in 0..5 {
        assert!(guest.echoes());
    }
    for expected in 5..10 {
        let base = guest.driver.stop_queue(0).unwrap();
        assert_eq!(base, expected);
        guest.queues[0] = Client::new(guest.driver.start_queue(0, base).unwrap());
        assert!(guest.echoes());
    }
    assert_eq!(host.counts.stopped.load(Ordering::SeqCst), 5);
    assert_eq!(host.counts.dropped.load(Ordering::SeqCst), 0);
}

#[test]
fn queue_stop_waits_boundedly_for_requests() {
    let host = TestHost::with(Settings { drain_timeout: Duration::from_millis(300), ..Settings::default() });
    let mut guest = host.guest(DriverSettings { queues: 2, ..DriverSettings::default() });
    guest.queues[0].send(&[HOLD]);
    host.wait_handled(1);
    let start = Instant::now();
    assert_eq!(guest.driver.stop_queue(0).unwrap(), 1);
    let waited = start.elapsed();
    assert!(waited >= Duration::from_millis(300) && waited < Duration::from_secs(30), "{waited:?}");
    // A late chain does not affect the queue that was started since.
    guest.queues[0] = Client::new(guest.driver.start_queue(0, 1).unwrap());
    guest.queues[1].send(&[RELEASE]);
    guest.queues[1].receive();
    std::thread::sleep(Duration::from_millis(20));
    assert!(guest.queues[0].queue.try_used().is_none());
    assert!(guest.echoes());
}

#[test]
fn queue_stop_ends_with_its_requests() {
    let host = TestHost::with(Settings { drain_timeout: TIMEOUT, ..Settings::default() });
    let mut guest = host.guest(DriverSettings { queues: 2, ..DriverSettings::default() });
    guest.queues[0].send(&[HOLD]);
    host.wait_handled(1);
    let start = Instant::now();
    std::thread::scope(|scope| {
        let other = &mut guest.queues[1];
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            other.send(&[RELEASE]);
            other.receive();
        });
        guest.driver.stop_queue(0).unwrap();
    });
    assert!(start.elapsed() < TIMEOUT / 2);
    assert!(guest.queues[0].queue.try_used().is_some());
}

#[test]
fn a_disabled_queue_rests_until_it_is_enabled() {
    let host = TestHost::new();
    let mut guest = host.guest(DriverSettings::default());
    assert!(guest.echoes());
    guest.driver.front.post_state(request::SET_VRING_ENABLE, 0, 0).unwrap();
    guest.queues[0].send(b"later");
    assert!(guest.queues[0].queue.wait_used(Duration::from_millis(50)).is_err());
    guest.driver.front.post_state(request::SET_VRING_ENABLE, 0, 1).unwrap();
    guest.queues[0].receive();
    assert!(guest.echoes());
}

#[test]
fn more_guests_than_allowed_wait_for_one_to_leave() {
    let host = TestHost::with(Settings { guests_max: 1, ..Settings::default() });
    let first = host.guest(DriverSettings::default());
    std::thread::scope(|scope| {
        let second = scope.spawn(|| host.guest(DriverSettings::default()).echoes());
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(host.server.guest_count(), 1);
        assert!(!second.is_finished());
        drop(first);
        assert!(second.join().unwrap());
    });
}

fn one_at_a_time() -> TestHost {
    TestHost::with(Settings { one_at_a_time: true, ..Settings::default() })
}

/// Returns `true` if the guest's request is still unanswered after a while.
fn waits(guest: &mut Guest) -> bool {
    guest.queues[0].queue.wait_used(Duration::from_millis(50)).is_err()
}

#[test]
fn exclusive_guests_run_one_after_the_other() {
    let host = one_at_a_time();
    let settings = DriverSettings::default();
    let (mut first, mut second, mut third) =
        (host.guest(settings), host.guest(settings), host.guest(settings));
    assert!(first.echoes());
    assert_eq!(second.driver.config(0, 13).unwrap(), b"configuration");
    second.queues[0].send(b"later");
    third.queues[0].send(b"later still");
    assert!(waits(&mut second) && waits(&mut third));
    // A rebooting guest keeps its turn.
    let base = first.driver.stop_queue(0).unwrap();
    assert!(waits(&mut second));
    first.driver.restart_queue(0, base, &first.queues[0].queue).unwrap();
    assert!(first.echoes());
    drop(first);
    second.queues[0].receive();
    assert!(second.echoes() && waits(&mut third));
    drop(second);
    third.queues[0].receive();
    assert!(third.echoes());
}

#[test]
fn guest_leaving_before_its_turn_blocks_nobody() {
    let host = one_at_a_time();
    let settings = DriverSettings::default();
    let (first, second, mut third) = (host.guest(settings), host.guest(settings), host.guest(settings));
    let mut fourth = host.guest(settings);
    drop(second);
    // This guest has stopped its queue meanwhile.
    third.driver.stop_queue(0).unwrap();
    fourth.queues[0].send(b"later");
    assert!(waits(&mut fourth));
    drop(first);
    fourth.queues[0].receive();
    assert!(fourth.echoes());
}

/// Covers the source of a live migration, which stays connected when stopped, and continues if the
/// destination gives up.
#[test]
fn migrating_guest_passes_its_turn_and_may_return() {
    let host = one_at_a_time();
    let settings = DriverSettings::default();
    let (mut source, mut destination) = (host.guest(settings), host.guest(settings));
    source.driver.share_log().unwrap();
    source.driver.set_logging(true, &[&source.queues[0].queue]).unwrap();
    assert!(source.echoes());
    destination.queues[0].send(b"later");
    assert!(waits(&mut destination));
    let base = source.driver.stop_queue(0).unwrap();
    destination.queues[0].receive();
    assert!(destination.echoes());
    source.driver.restart_queue(0, base, &source.queues[0].queue).unwrap();
    source.queues[0].send(b"again");
    assert!(waits(&mut source) && destination.echoes());
    drop(destination);
    source.queues[0].receive();
    assert!(source.echoes());
}

#[test]
fn a_server_stops_while_guests_are_busy() {
    let host = TestHost::new();
    let mut guests: Vec<_> = (0..3).map(|_| host.guest(DriverSettings::default())).collect();
    guests[0].queues[0].send(&[HOLD]);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for guest in &mut guests[1..] {
            scope.spawn(|| {
                let client = &mut guest.queues[0];
                loop {
                    client.send(b"again");
                    if client.queue.wait_used(Duration::from_millis(500)).is_err() {
                        return;
                    }
                }
            });
        }
        std::thread::sleep(Duration::from_millis(50));
        host.server.stop();
    });
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(host.counts.stopped.load(Ordering::SeqCst), 3);
}

#[test]
fn a_device_that_panics_loses_its_queue_only() {
    let host = TestHost::new();
    let settings = DriverSettings { queues: 2, ..DriverSettings::default() };
    let (mut guest, mut other) = (host.guest(settings), host.guest(settings));
    guest.queues[0].send(&[PANIC]);
    assert!(guest.queues[0].queue.wait_broken(TIMEOUT));
    assert!(guest.queues[1].echoes() && other.echoes());
}

#[test]
fn next_server_repeats_only_unanswered_requests() {
    let first = TestHost::repeating();
    let mut driver = first.driver(true);
    let mut queue = driver.start_queue(0, 0).unwrap();
    let held = [send(&mut queue, HOLD), send(&mut queue, HOLD)];
    let echoed = send(&mut queue, ECHO);
    assert_eq!(queue.wait_used(TIMEOUT).unwrap().head, echoed);
    first.wait_handled(3);
    drop(first);

    let second = TestHost::repeating();
    driver.go_on_with(&second.socket, &mut [&mut queue]).unwrap();
    second.wait_handled(2);
    let release = send(&mut queue, RELEASE);
    let mut answered: Vec<u16> = (0..3).map(|_| queue.wait_used(TIMEOUT).unwrap().head).collect();
    // The device answers in reverse order: the requests were repeated in their order.
    assert_eq!(answered, [release, held[1], held[0]]);
    assert_eq!(second.handled(), 3);

    // A third process finds nothing under way, and continues.
    drop(second);
    let third = TestHost::repeating();
    driver.go_on_with(&third.socket, &mut [&mut queue]).unwrap();
    let echoed = send(&mut queue, ECHO);
    answered.push(queue.wait_used(TIMEOUT).unwrap().head);
    assert_eq!((answered.last(), third.handled()), (Some(&echoed), 1));
}

#[test]
fn leftover_requests_are_answered_before_immediate_stop() {
    let first = TestHost::repeating();
    let mut driver = first.driver(true);
    let mut queue = driver.start_queue(0, 0).unwrap();
    let requests: Vec<_> = (0..6)
        .map(|_| {
            let (request, answer) = (queue.alloc(8).unwrap(), queue.alloc(8).unwrap());
            queue.write(request, &[HOLD]);
            queue.submit(&[request.first(1).readable(), answer.writable()]).unwrap();
            request
        })
        .collect();
    first.wait_handled(6);
    drop(first);

    for request in requests {
        queue.write(request, &[SLOW]);
    }
    let second = TestHost::repeating();
    driver.go_on_with(&second.socket, &mut [&mut queue]).unwrap();
    assert_eq!(driver.stop_queue(0).unwrap(), 6);
    assert_eq!((queue.used_index(), second.handled()), (6, 6));
}

/// Covers a virtual machine that is paused and resumed.
#[test]
fn request_outlasting_stop_is_answered_after_resume() {
    for repeats in [false, true] {
        let host = if repeats { TestHost::repeating() } else { TestHost::new() };
        let mut driver = host.driver(repeats);
        let mut queue = driver.start_queue(0, 0).unwrap();
        let held = [send(&mut queue, HOLD), send(&mut queue, HOLD)];
        host.wait_handled(2);
        assert_eq!(driver.stop_queue(0).unwrap(), 2);
        // One chain is returned while the queue is stopped, the other later.
        host.release_one();
        assert!(queue.try_used().is_none());
        driver.restart_queue(0, 2, &queue).unwrap();
        assert_eq!(queue.wait_used(TIMEOUT).unwrap().head, held[0]);
        host.release_one();
        assert_eq!(queue.wait_used(TIMEOUT).unwrap().head, held[1]);
        let echoed = send(&mut queue, ECHO);
        assert_eq!(queue.wait_used(TIMEOUT).unwrap().head, echoed);
        assert_eq!(host.handled(), 3, "each was performed once");
    }
}

/// Covers a reset, after which the guest waits for nothing: its next start has other rings, in this process
/// and in the next.
#[test]
fn request_outlasting_reset_is_dropped() {
    let host = TestHost::repeating();
    let mut driver = host.driver(true);
    let mut queue = driver.start_queue(0, 0).unwrap();
    let echoed = send(&mut queue, ECHO);
    assert_eq!(queue.wait_used(TIMEOUT).unwrap().head, echoed);
    [HOLD, HOLD].into_iter().for_each(|kind| _ = send(&mut queue, kind));
    host.wait_handled(3);
    assert_eq!(driver.stop_queue(0).unwrap(), 3);
    let mut queue = driver.start_queue(0, 0).unwrap();
    let echoed = send(&mut queue, ECHO);
    assert_eq!(queue.wait_used(TIMEOUT).unwrap().head, echoed);
    host.release_one();
    let held = send(&mut queue, HOLD);
    host.wait_handled(5);
    assert!(queue.try_used().is_none());
    drop(host);

    // The next process has the requests under way since.
    let second = TestHost::repeating();
    driver.go_on_with(&second.socket, &mut [&mut queue]).unwrap();
    second.wait_handled(1);
    second.release_one();
    assert_eq!(queue.wait_used(TIMEOUT).unwrap().head, held);
    [HOLD, HOLD].into_iter().for_each(|kind| _ = send(&mut queue, kind));
    second.wait_handled(3);
    drop(second);

    // The guest was reset while there was no server.
    let third = TestHost::repeating();
    driver.go_on_with(&third.socket, &mut []).unwrap();
    let mut queue = driver.start_queue(0, 0).unwrap();
    let echoed = send(&mut queue, ECHO);
    assert_eq!(queue.wait_used(TIMEOUT).unwrap().head, echoed);
    assert_eq!(third.handled(), 1);
}

#[test]
fn short_or_late_in_flight_area_is_refused() {
    let host = TestHost::repeating();
    assert!(host.driver(false).keep_requests(64).is_err());
    let mut late = host.driver(false);
    let _queue = late.start_queue(0, 0).unwrap();
    assert!(late.keep_requests(8192).is_err());
    // In-flight tracking is not offered by devices that cannot repeat requests.
    assert!(TestHost::new().connect().keep_requests(8192).is_err());
}
