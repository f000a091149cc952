//! Protocol violations in virtqueues. Each stops its queue; the device sees nothing of it, the guest's other
//! queue and other guests continue, and a reset makes the queue usable again.

use crate::device::{Client, Guest, HOLD, TIMEOUT, TestHost, memfd};
use rustix::fs::ftruncate;
use std::os::fd::AsFd;
use std::time::Duration;
use tombolo_vhost_driver::{
    DriverQueue, DriverSettings, GUEST_BASE, GuestBuffer, MemoryEntry, Part, USER_BASE, Wait, request,
};

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
const SIZE: u16 = 128;

/// Commits a violation on a fresh queue and checks all consequences.
fn violates(what: &str, settings: DriverSettings, tell: impl Fn(&mut Client)) {
    let host = TestHost::new();
    let settings = DriverSettings { queues: 2, ..settings };
    let (mut hostile, mut honest) = (host.guest(settings), host.guest(settings));
    assert!(hostile.echoes() && honest.echoes());
    let before = host.handled();
    tell(&mut hostile.queues[0]);
    hostile.queues[0].queue.kick_always();
    assert!(hostile.queues[0].queue.wait_broken(TIMEOUT), "{what}: the queue must stop");
    assert_eq!(host.handled(), before, "{what}: the device must not see the chain");
    assert!(hostile.queues[0].queue.try_used().is_none(), "{what}: nothing is handed back");
    assert!(hostile.queues[1].echoes(), "{what}: the guest's other queue goes on");
    assert!(honest.echoes(), "{what}: the other guest notices nothing");
    // A kick of a dead queue has no effect; a reset revives it.
    hostile.queues[0].queue.kick_always();
    hostile.driver.stop_queue(0).unwrap();
    hostile.queues[0] = Client::new(hostile.driver.start_queue(0, 0).unwrap());
    assert!(hostile.echoes());
}

/// Writes descriptors from index 0 and offers the first.
fn chain(client: &mut Client, descriptors: &[(u64, u32, u16, u16)]) {
    for (index, (address, len, flags, next)) in descriptors.iter().enumerate() {
        client.queue.set_descriptor(index as u16, *address, *len, *flags, *next).unwrap();
    }
    client.queue.offer(0).unwrap();
}

/// Writes an indirect table into the request buffer.
fn table(client: &Client, entries: &[(u64, u32, u16, u16)]) -> (u64, u32) {
    let mut bytes = Vec::new();
    for (address, len, flags, next) in entries {
        bytes.extend(address.to_le_bytes());
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
    }
    client.queue.write(client.request, &bytes);
    (client.request.address, bytes.len() as u32)
}

/// A violation: description and function.
type Violation = (&'static str, fn(&mut Client));

const CHAINS: [Violation; 6] = [
    ("a descriptor that names itself", |c| chain(c, &[(c.request.address, 1, NEXT, 0)])),
    ("a loop of three descriptors", |c| {
        let at = c.request.address;
        chain(c, &[(at, 1, NEXT, 1), (at, 1, NEXT, 2), (at, 1, NEXT, 0)]);
    }),
    ("a readable part behind a writable one", |c| {
        chain(c, &[(c.answer.address, 1, WRITE | NEXT, 1), (c.request.address, 1, 0, 0)]);
    }),
    ("more descriptors than the device allows", |c| {
        let at = c.request.address;
        let parts: Vec<_> = (0..65u16).map(|i| (at, 1, if i < 64 { NEXT } else { 0 }, i + 1)).collect();
        chain(c, &parts);
    }),
    ("more bytes than the device allows", |c| chain(c, &[(GUEST_BASE, (1 << 20) + 1, WRITE, 0)])),
    ("more bytes than the device allows, in two parts", |c| {
        chain(c, &[(GUEST_BASE, 1 << 20, NEXT, 1), (GUEST_BASE, 1, WRITE, 0)]);
    }),
];

const INDIRECT_TABLES: [Violation; 6] = [
    ("an indirect table with half an entry", |c| {
        let (address, len) = table(c, &[(c.answer.address, 1, WRITE, 0)]);
        chain(c, &[(address, len + 8, INDIRECT, 0)]);
    }),
    ("a loop inside an indirect table", |c| {
        let at = c.answer.address;
        let (address, len) = table(c, &[(at, 1, NEXT, 1), (at, 1, NEXT, 0)]);
        chain(c, &[(address, len, INDIRECT, 0)]);
    }),
    ("a next beyond an indirect table", |c| {
        let (address, len) = table(c, &[(c.answer.address, 1, NEXT, 2), (c.answer.address, 1, 0, 0)]);
        chain(c, &[(address, len, INDIRECT, 0)]);
    }),
    ("an indirect table inside an indirect table", |c| {
        let (address, len) = table(c, &[(c.answer.address, 16, INDIRECT, 0)]);
        chain(c, &[(address, len, INDIRECT, 0)]);
    }),
    ("an indirect table with a next descriptor", |c| {
        let (address, len) = table(c, &[(c.answer.address, 1, WRITE, 0)]);
        chain(c, &[(address, len, INDIRECT | NEXT, 1), (c.answer.address, 1, WRITE, 0)]);
    }),
    ("more entries than can be named", |c| chain(c, &[(GUEST_BASE, 65_536 * 16, INDIRECT, 0)])),
];

#[test]
fn malformed_chains() {
    CHAINS.into_iter().chain(INDIRECT_TABLES).for_each(|(what, tell)| {
        violates(what, DriverSettings::default(), tell);
    });
}

#[test]
fn an_indirect_table_that_was_not_negotiated() {
    violates("not negotiated", DriverSettings { indirect: false, ..DriverSettings::default() }, |c| {
        let (address, len) = table(c, &[(c.answer.address, 1, WRITE, 0)]);
        chain(c, &[(address, len, INDIRECT, 0)]);
    });
}

#[test]
fn indices_beyond_the_table() {
    let plain = DriverSettings::default();
    for next in [SIZE, SIZE + 1, u16::MAX] {
        violates(&format!("next {next}"), plain, |c| chain(c, &[(c.request.address, 1, NEXT, next)]));
    }
    for head in [SIZE, u16::MAX] {
        violates(&format!("head {head}"), plain, |c| c.queue.offer(head).unwrap());
    }
    for jump in [SIZE + 1, 1000, u16::MAX] {
        violates(&format!("the available index jumps by {jump}"), plain, |c| {
            let index = c.queue.available_index().wrapping_add(jump);
            c.queue.set_available_index(index).unwrap();
        });
    }
}

#[test]
fn addresses_outside_of_memory() {
    let plain = DriverSettings::default();
    let end = GUEST_BASE + plain.queue_memory_bytes as u64 * 2;
    let outside = [(0, 1), (GUEST_BASE - 1, 1), (GUEST_BASE - 1, 2), (end, 1), (end - 1, 2)];
    let wraps = [(u64::MAX, 1), (u64::MAX, 2), (u64::MAX - 10, 100), (GUEST_BASE, u32::MAX)];
    let tables = [(GUEST_BASE, 15), (GUEST_BASE, 17), (end - 16, 32), (0, 16), (u64::MAX - 15, 16)];
    for (places, flags) in
        [(&outside[..], 0), (&outside[..], WRITE), (&wraps[..], WRITE), (&tables[..], INDIRECT)]
    {
        for &(address, len) in places {
            violates(&format!("{len} bytes at {address:#x}, flags {flags}"), plain, |c| {
                chain(c, &[(address, len, flags, 0)]);
            });
        }
    }
}

#[test]
fn lengths_of_zero_and_of_all_ones() {
    for (len, flags) in
        [0, u32::MAX].into_iter().flat_map(|len| [0, WRITE, INDIRECT].map(|flags| (len, flags)))
    {
        violates(&format!("length {len}, flags {flags}"), DriverSettings::default(), |c| {
            chain(c, &[(c.request.address, len, flags, 0)]);
        });
    }
}

#[test]
fn repeated_chain_is_bounded_by_queue_size() {
    let host = TestHost::new();
    let mut guest = host.guest(DriverSettings { wait: Wait::Poll, ..DriverSettings::default() });
    let client = &mut guest.queues[0];
    client.queue.write(client.request, &[HOLD]);
    client.queue.set_descriptor(0, client.request.address, 1, 0, 0).unwrap();
    for offered in 1..=usize::from(SIZE) {
        client.queue.offer(0).unwrap();
        client.queue.kick_always();
        host.wait_handled(offered);
    }
    assert!(!client.queue.wait_broken(Duration::from_millis(50)));
    client.queue.offer(0).unwrap();
    client.queue.kick_always();
    assert!(client.queue.wait_broken(TIMEOUT));
    assert_eq!(host.handled(), usize::from(SIZE), "no more requests under way than descriptors");
}

#[test]
fn memory_truncated_under_rings_stops_only_that_guest() {
    let host = TestHost::new();
    let settings = DriverSettings { queues: 2, ..DriverSettings::default() };
    let (mut hostile, mut honest) = (host.guest(settings), host.guest(settings));
    assert!(hostile.echoes() && honest.echoes());
    ftruncate(hostile.driver.memory_file(), 0).unwrap();
    for client in &hostile.queues {
        client.queue.kick_always();
        assert!(client.queue.wait_broken(TIMEOUT));
    }
    assert!(honest.echoes());
}

#[test]
fn memory_truncated_during_copy_stops_only_that_guest() {
    let host = TestHost::new();
    let settings = DriverSettings { wait: Wait::Poll, ..DriverSettings::default() };
    let mut honest = host.guest(settings);
    for round in 0..20 {
        let mut hostile = host.guest(settings);
        assert!(hostile.echoes());
        // The rings remain; the buffers behind them are truncated.
        let buffer = hostile.queues[0].queue.alloc(512 << 10).unwrap();
        let parts = [buffer.readable(), buffer.writable()];
        for _ in 0..8 {
            hostile.queues[0].queue.add(&parts).unwrap();
        }
        hostile.queues[0].queue.kick();
        std::thread::sleep(Duration::from_micros(50 * round));
        ftruncate(hostile.driver.memory_file(), 64 << 10).unwrap();
        hostile.queues[0].queue.add(&parts).unwrap();
        hostile.queues[0].queue.kick_always();
        assert!(hostile.queues[0].queue.wait_broken(TIMEOUT));
        assert!(honest.echoes());
    }
}

#[test]
fn truncated_buffers_stop_only_that_queue() {
    let host = TestHost::new();
    let settings = DriverSettings::default();
    let (mut hostile, mut honest) = (host.guest(settings), host.guest(settings));
    let buffers = memfd(1 << 20);
    let (guest_address, user_address) = (GUEST_BASE + (1 << 30), USER_BASE + (1 << 30));
    let entry = MemoryEntry { guest_address, size: 1 << 20, user_address, file_offset: 0 };
    hostile.driver.front.change_memory(request::ADD_MEM_REG, entry, &[buffers.as_fd()]).unwrap();
    let queue = &mut hostile.queues[0].queue;
    let buffer = GuestBuffer { address: guest_address, len: 4096 };
    let parts = [buffer.readable(), buffer.writable()];
    queue.submit(&parts).unwrap();
    assert_eq!(queue.wait_used(TIMEOUT).unwrap().written, 4096);
    ftruncate(&buffers, 0).unwrap();
    queue.submit(&parts).unwrap();
    assert!(queue.wait_broken(TIMEOUT));
    assert!(honest.echoes());
}

#[test]
fn replaced_memory_stays_until_request_ends() {
    let host = TestHost::new();
    let mut guest = host.guest(DriverSettings { queues: 2, ..DriverSettings::default() });
    guest.queues[0].send(&[HOLD]);
    host.wait_handled(1);
    let entry = guest.driver.memory_table()[0];
    guest.driver.front.change_memory(request::REM_MEM_REG, entry, &[]).unwrap();
    for client in &mut guest.queues {
        client.send(b"after the end");
        assert!(client.queue.wait_used(Duration::from_millis(50)).is_err());
    }
    // The same memory is shared again; the queues must be set up again.
    guest.driver.share_memory().unwrap();
    for index in [0, 1] {
        guest.driver.stop_queue(index).unwrap();
        guest.queues[usize::from(index)] = Client::new(guest.driver.start_queue(index, 0).unwrap());
    }
    assert!(guest.echoes());
}

#[test]
fn random_rings_never_harm_other_guests() {
    let host = TestHost::new();
    let settings =
        DriverSettings { queue_size: 8, queue_memory_bytes: 64 << 10, ..DriverSettings::default() };
    let mut honest = host.guest(DriverSettings::default());
    let mut random = 1u64;
    let mut word = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for _ in 0..200 {
        let Guest { driver: _driver, mut queues } = host.guest(settings);
        let queue: &mut DriverQueue = &mut queues[0].queue;
        for index in 0..8 {
            let address = GUEST_BASE + word() % (80 << 10);
            let (flags, next) = ((word() % 8) as u16, (word() % 9) as u16);
            queue.set_descriptor(index, address, (word() % 4096) as u32, flags, next).unwrap();
        }
        for _ in 0..4 {
            queue.offer((word() % 9) as u16).unwrap();
            queue.kick_always();
        }
    }
    assert!(honest.echoes());
}

#[test]
fn a_valid_chain_is_no_violation() {
    // Counterpart of the tests above: the same building blocks, used correctly.
    let host = TestHost::new();
    let mut guest = host.guest(DriverSettings::default());
    let client = &mut guest.queues[0];
    let (request, answer) = (client.request, client.answer);
    client.queue.write(request, b"truth");
    let (address, len) = {
        let entries = [(request.address + 64, 5, NEXT, 1), (answer.address, 5, WRITE, 0)];
        table(client, &entries)
    };
    let inner = Part { address: request.address + 64, len: 5, writable: false };
    client.queue.sink(request).write_at(64, b"truth");
    chain(client, &[(address, len, INDIRECT, 0)]);
    client.queue.kick_always();
    assert_eq!(client.receive().written, inner.len);
}
