//! Well-behaved guests.

use crate::device::{Client, DROP, ECHO, HOLD, RELEASE, TIMEOUT, TestHost};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::AsFd;
use std::time::Duration;
use tombolo_host_vhost::Settings;
use tombolo_vhost_driver::{DriverSettings, Part, Wait, request};

fn all_settings() -> impl Iterator<Item = DriverSettings> {
    let choices = [(true, true), (true, false), (false, true), (false, false)];
    choices.into_iter().flat_map(|(event_index, indirect)| {
        [Wait::Poll, Wait::Event].map(|wait| DriverSettings {
            queues: 2,
            event_index,
            indirect,
            wait,
            ..DriverSettings::default()
        })
    })
}

#[test]
fn requests_complete_under_every_feature_and_wait() {
    for spin_max in [Duration::ZERO, Duration::from_micros(50)] {
        let host = TestHost::with(Settings { spin_max, ..Settings::default() });
        for settings in all_settings() {
            let mut guest = host.guest(settings);
            for round in 0..300 {
                assert!(guest.echoes(), "round {round} with {settings:?}");
            }
        }
    }
}

#[test]
fn queue_continues_after_index_wrap() {
    let host = TestHost::new();
    for (queue_size, together) in [(2, 2), (128, 100)] {
        let mut guest = host.guest(DriverSettings { queue_size, ..DriverSettings::default() });
        let Client { queue, request, answer } = &mut guest.queues[0];
        queue.write(*request, &[ECHO]);
        let parts = [request.first(1).readable(), answer.first(1).writable()];
        let mut count = 0;
        while count < 70_000 {
            (0..together).for_each(|_| assert!(queue.add(&parts).is_some()));
            queue.kick();
            (0..together).for_each(|_| assert_eq!(queue.wait_used(TIMEOUT).unwrap().written, 1));
            count += together;
        }
        assert!(guest.echoes());
    }
}

#[test]
fn a_slow_guest_is_interrupted_after_every_pause() {
    let host = TestHost::new();
    let mut guest = host.guest(DriverSettings::default());
    for pause_us in [0, 10, 45, 60, 100, 1000, 20_000].into_iter().cycle().take(140) {
        std::thread::sleep(Duration::from_micros(pause_us));
        assert!(guest.echoes());
    }
}

#[test]
fn chains_are_completed_out_of_order_from_another_thread() {
    let host = TestHost::new();
    for settings in all_settings() {
        let mut guest = host.guest(settings);
        let Client { queue, .. } = &mut guest.queues[1];
        let mut sent = Vec::new();
        for kind in [HOLD, HOLD, ECHO, HOLD, RELEASE] {
            let (request, answer) = (queue.alloc(64).unwrap(), queue.alloc(64).unwrap());
            let text = [kind, sent.len() as u8];
            queue.write(request, &text);
            let head = queue.submit(&[request.first(2).readable(), answer.writable()]).unwrap();
            sent.push((head, answer, text));
        }
        let mut order = Vec::new();
        for _ in 0..sent.len() {
            let used = queue.wait_used(TIMEOUT).unwrap();
            let at = sent.iter().position(|(head, ..)| *head == used.head).unwrap();
            let mut answer = [0; 2];
            queue.read(sent[at].1, &mut answer);
            assert_eq!((used.written, answer), (2, sent[at].2));
            order.push(at);
        }
        assert_eq!(order, [2, 4, 3, 1, 0], "{settings:?}");
    }
}

#[test]
fn dropped_chain_is_returned_empty() {
    let host = TestHost::new();
    let mut guest = host.guest(DriverSettings::default());
    let head = guest.queues[0].send(&[DROP, 1, 2, 3]);
    let used = guest.queues[0].receive();
    assert_eq!((used.head, used.written), (head, 0));
    assert!(guest.echoes());
}

#[test]
fn many_answers_ready_together_raise_few_interrupts() {
    let host = TestHost::new();
    for event_index in [true, false] {
        let settings = DriverSettings { event_index, ..DriverSettings::default() };
        let mut guest = host.guest(settings);
        let Client { queue, request, answer } = &mut guest.queues[0];
        queue.write(*request, &[ECHO]);
        let parts = [request.first(1).readable(), answer.first(1).writable()];
        let mut interrupts = 0;
        for _ in 0..50 {
            queue.interrupts();
            for _ in 0..24 {
                queue.add(&parts).unwrap();
            }
            queue.kick();
            for _ in 0..24 {
                queue.wait_used(TIMEOUT).unwrap();
            }
            std::thread::sleep(Duration::from_micros(200));
            interrupts += queue.interrupts();
        }
        assert!(interrupts <= 150, "{interrupts} interrupts for 50 batches of 24");
    }
}

/// Returns how many of 100 chains are taken without a kick, half a millisecond after the previous one.
fn taken_without_a_kick(host: &TestHost, settings: DriverSettings) -> usize {
    let mut guest = host.guest(settings);
    let Client { queue, request, answer } = &mut guest.queues[0];
    queue.write(*request, &[ECHO]);
    let parts = [request.first(1).readable(), answer.first(1).writable()];
    let mut taken = 0;
    for _ in 0..100 {
        queue.submit(&parts).unwrap();
        queue.wait_used(TIMEOUT).unwrap();
        std::thread::sleep(Duration::from_micros(500));
        queue.add(&parts).unwrap();
        if queue.wait_used(Duration::from_millis(20)).is_ok() {
            taken += 1;
        } else {
            queue.kick_always();
            queue.wait_used(TIMEOUT).unwrap();
        }
    }
    assert!(guest.echoes());
    taken
}

#[test]
fn non_urgent_chains_are_batched_with_few_kicks() {
    let settings = Settings { spin_max: Duration::ZERO, ..Settings::default() };
    for event_index in [true, false] {
        let driver = DriverSettings { event_index, ..DriverSettings::default() };
        // On a busy machine half a millisecond may take arbitrarily long, for the test and for the queue's
        // thread.
        let taken = taken_without_a_kick(&TestHost::patient(settings), driver);
        assert!(taken >= 10, "{taken} of 100");
    }
}

#[test]
fn a_guest_that_polls_is_not_interrupted() {
    let host = TestHost::new();
    for event_index in [true, false] {
        let settings = DriverSettings { event_index, wait: Wait::Poll, ..DriverSettings::default() };
        let mut guest = host.guest(settings);
        (0..500).for_each(|_| assert!(guest.echoes()));
        assert_eq!(guest.queues[0].queue.interrupts(), 0);
    }
}

#[test]
fn a_replaced_call_descriptor_is_signalled_once() {
    let host = TestHost::new();
    let mut guest = host.guest(DriverSettings::default());
    assert!(guest.echoes());
    let notifier = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    guest.driver.front.set_vring_fd(request::SET_VRING_CALL, 0, Some(notifier.as_fd())).unwrap();
    let mut count = [0; 8];
    rustix::io::read(&notifier, &mut count).unwrap();
    assert_eq!(u64::from_ne_bytes(count), 1);
}

#[test]
fn a_chain_of_many_parts_keeps_their_order() {
    let host = TestHost::new();
    for indirect in [true, false] {
        let mut guest = host.guest(DriverSettings { indirect, ..DriverSettings::default() });
        let queue = &mut guest.queues[0].queue;
        let text = b"cut into many parts";
        let mut parts: Vec<Part> = Vec::new();
        let mut answers = Vec::new();
        for byte in text.chunks(2) {
            let buffer = queue.alloc(byte.len() as u32).unwrap();
            queue.write(buffer, byte);
            parts.push(buffer.readable());
        }
        for len in [1, 7, 3, 8] {
            let buffer = queue.alloc(len).unwrap();
            parts.push(buffer.writable());
            answers.push(buffer);
        }
        queue.submit(&parts).unwrap();
        assert_eq!(queue.wait_used(TIMEOUT).unwrap().written, text.len() as u32);
        let mut answer = Vec::new();
        for buffer in answers {
            let mut part = vec![0; buffer.len as usize];
            queue.read(buffer, &mut part);
            answer.extend(part);
        }
        assert_eq!(answer, text);
    }
}

#[test]
fn guests_of_one_socket_are_isolated() {
    let host = TestHost::new();
    let settings = DriverSettings { queues: 2, ..DriverSettings::default() };
    let (mut one, mut two) = (host.guest(settings), host.guest(settings));
    std::thread::scope(|scope| {
        for guest in [&mut one, &mut two] {
            scope.spawn(move || (0..2000).for_each(|_| assert!(guest.echoes())));
        }
    });
    assert_eq!(host.server.guest_count(), 2);
    one.queues[0].send(&[HOLD]);
    drop(one);
    for _ in 0..100 {
        assert!(two.echoes());
    }
}
