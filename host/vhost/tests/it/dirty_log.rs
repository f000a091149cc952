//! Live migration: writes to guest memory are marked in the log shared by the front end.

use crate::device::{Client, ECHO, Guest, HOLD, RELEASE, TIMEOUT, TestHost, memfd};
use rustix::fs::ftruncate;
use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use tombolo_vhost_driver::{
    Driver, DriverQueue, DriverSettings, GUEST_BASE, GuestBuffer, MemoryEntry, USER_BASE, request,
};

const PAGE: u64 = 4096;
const LOG_ALL: u64 = 1 << 26;

fn pages_of(buffer: GuestBuffer) -> BTreeSet<u64> {
    let end = buffer.address + u64::from(buffer.len);
    (buffer.address / PAGE..end.div_ceil(PAGE)).map(|page| page * PAGE).collect()
}

fn memory(driver: &Driver) -> Vec<u8> {
    let mut bytes = vec![0; driver.region().len()];
    driver.region().read_at(0, &mut bytes).unwrap();
    bytes
}

fn logged(settings: DriverSettings) -> (TestHost, Guest) {
    let host = TestHost::new();
    let mut guest = host.guest(settings);
    guest.driver.share_log().unwrap();
    set_logging(&mut guest, true);
    (host, guest)
}

fn set_logging(guest: &mut Guest, is_on: bool) {
    let queues: Vec<&DriverQueue> = guest.queues.iter().map(|client| &client.queue).collect();
    guest.driver.set_logging(is_on, &queues).unwrap();
}

/// Echoes in buffers at arbitrary offsets, in chains of several buffers.
#[test]
fn dirty_log_marks_exactly_the_changed_pages() {
    for (event_index, indirect) in [(true, true), (false, false), (true, false)] {
        let settings = DriverSettings { event_index, indirect, ..DriverSettings::default() };
        let (_host, mut guest) = logged(settings);
        let Guest { driver, queues } = &mut guest;
        let queue = &mut queues[0].queue;
        let request = queue.alloc(64 << 10).unwrap();
        let space = queue.alloc(256 << 10).unwrap();
        queue.write(request, &vec![ECHO; 64 << 10]);
        for (first, len) in [(0, 1), (4095, 2), (1, 4095), (100, 40_000), (4096, 8192), (8191, 4098)] {
            let piece = |at, len| GuestBuffer { address: space.address + at, len };
            let pieces = [piece(first, len), piece(first + u64::from(len) + 70_000, len)];
            queue.write(space, &vec![0; 256 << 10]);
            driver.share_log().unwrap();
            let before = memory(driver);
            let parts = [request.first(2 * len).readable(), pieces[0].writable(), pieces[1].writable()];
            queue.submit(&parts).unwrap();
            assert_eq!(queue.wait_used(TIMEOUT).unwrap().written, (2 * len).min(64 << 10));
            // The thread has stopped.
            driver.stop_queue(0).unwrap();
            let (after, marked) = (memory(driver), driver.dirty_pages());
            let changed = (0..).zip(before.chunks(4096).zip(after.chunks(4096)));
            let changed = changed.filter(|(_, (before, after))| before != after);
            let changed: BTreeSet<u64> = changed.map(|(page, _)| GUEST_BASE + page * PAGE).collect();
            let of_device = [pages_of(pieces[0]), pages_of(pieces[1]), pages_of(queue.used_ring())];
            let of_device: BTreeSet<u64> = of_device.into_iter().flatten().collect();
            assert_eq!(marked, of_device, "{first}, {len}");
            // The others were changed by the driver: its rings and indirect tables precede its buffers.
            let unmarked: Vec<&u64> = changed.difference(&marked).collect();
            assert!(unmarked.iter().all(|page| **page < request.address.min(space.address)), "{unmarked:x?}");
            let base = queue.used_index();
            driver.restart_queue(0, base, queue).unwrap();
        }
    }
}

#[test]
fn used_ring_is_marked_at_its_log_address() {
    let (_host, mut guest) = logged(DriverSettings::default());
    let used = guest.queues[0].queue.used_ring();
    assert!(guest.echoes());
    assert!(guest.driver.dirty_pages().is_superset(&pages_of(used)));
    // Usually the ring's own address; a front end may have another view of guest memory.
    guest.driver.share_log().unwrap();
    let elsewhere = GuestBuffer { address: GUEST_BASE + (1 << 20), ..used };
    log_ring(&mut guest.driver, &guest.queues[0].queue, Some(elsewhere.address)).unwrap();
    assert!(guest.driver.dirty_pages().is_superset(&pages_of(elsewhere)));
    guest.driver.share_log().unwrap();
    assert!(guest.echoes());
    let marked = guest.driver.dirty_pages();
    assert!(marked.is_superset(&pages_of(elsewhere)) && marked.is_disjoint(&pages_of(used)), "{marked:x?}");
    // Without an address, the ring is marked where it is.
    log_ring(&mut guest.driver, &guest.queues[0].queue, None).unwrap();
    guest.driver.share_log().unwrap();
    assert!(guest.echoes());
    assert!(guest.driver.dirty_pages().is_superset(&pages_of(used)));
}

/// Sets a running queue's rings again, unchanged but for the log address.
fn log_ring(driver: &mut Driver, queue: &DriverQueue, log: Option<u64>) -> std::io::Result<()> {
    driver.front.set_vring_addresses(0, queue.ring_addresses(), log)
}

/// Covers chains taken before logging begins, or before the log is replaced, and returned afterwards.
#[test]
fn returned_chain_is_marked_in_the_current_log() {
    let host = TestHost::new();
    let mut guest = host.guest(DriverSettings::default());
    let hold = |client: &mut Client| {
        let (request, answer) = (client.queue.alloc(8).unwrap(), client.queue.alloc(20_000).unwrap());
        client.queue.write(request, &[HOLD]);
        client.queue.submit(&[request.first(1).readable(), answer.writable()]).unwrap();
        answer
    };
    let held = [hold(&mut guest.queues[0]), hold(&mut guest.queues[0])];
    host.wait_handled(2);
    guest.driver.share_log().unwrap();
    set_logging(&mut guest, true);
    guest.driver.share_log().unwrap();
    guest.queues[0].send(&[RELEASE]);
    for _ in 0..3 {
        guest.queues[0].receive();
    }
    let marked = guest.driver.dirty_pages();
    assert!(held.iter().all(|answer| marked.is_superset(&pages_of(*answer))), "{marked:x?}");
    // Nothing is marked after logging has ended.
    set_logging(&mut guest, false);
    let ended = guest.driver.dirty_pages();
    guest.driver.share_log().unwrap();
    assert!(guest.echoes() && guest.driver.dirty_pages().is_empty() && !ended.is_empty());
}

/// Copies a guest's memory as a migration does, while its queue is busy, many times.
#[test]
fn copying_by_dirty_log_yields_guest_memory() {
    let host = TestHost::new();
    let mut guest = host.guest(DriverSettings { queue_memory_bytes: 1 << 20, ..DriverSettings::default() });
    let stop = AtomicBool::new(false);
    let answers: Vec<GuestBuffer> = (0..100).map(|_| guest.queues[0].queue.alloc(4096).unwrap()).collect();
    for round in 0..20u8 {
        stop.store(false, Ordering::Relaxed);
        let Guest { driver, queues } = &mut guest;
        let client = &mut queues[0];
        let (ring, addresses) = (client.queue.used_ring(), client.queue.ring_addresses());
        let copy = std::thread::scope(|scope| {
            let busy = scope.spawn(|| {
                let mut n = 0u32;
                while !stop.load(Ordering::Relaxed) {
                    n += 1;
                    let request = client.request.first(64);
                    client.queue.write(request, &[&[ECHO, round][..], &n.to_le_bytes(), &[1; 58]].concat());
                    let answer = answers[(n * 37) as usize % answers.len()];
                    client.queue.submit(&[request.readable(), answer.writable()]).unwrap();
                    client.receive();
                }
            });
            driver.share_log().unwrap();
            driver.front.post_u64(request::SET_FEATURES, driver.features() | LOG_ALL).unwrap();
            driver.front.set_vring_addresses(0, addresses, Some(ring.address)).unwrap();
            let mut copy = memory(driver);
            for pass in 0..10 {
                // The last pass with a stopped queue.
                if pass == 9 {
                    stop.store(true, Ordering::Relaxed);
                    while !busy.is_finished() {
                        std::thread::yield_now();
                    }
                    driver.stop_queue(0).unwrap();
                }
                let dirty = driver.take_dirty_pages().unwrap();
                for page in dirty {
                    let at = (page - GUEST_BASE) as usize;
                    driver.region().read_at(at, &mut copy[at..at + 4096]).unwrap();
                }
            }
            copy
        });
        let now = memory(driver);
        let of_device = answers.iter().copied().chain([ring]);
        for GuestBuffer { address, len } in of_device {
            let span = (address - GUEST_BASE) as usize..(address - GUEST_BASE) as usize + len as usize;
            assert!(copy[span.clone()] == now[span], "round {round}: {address:#x} differs");
        }
        driver.front.post_u64(request::SET_FEATURES, driver.features()).unwrap();
        let base = client.queue.used_index();
        driver.restart_queue(0, base, &client.queue).unwrap();
        assert!(client.echoes());
    }
}

#[test]
fn invalid_dirty_log_ends_only_its_connection() {
    let host = TestHost::new();
    let mut honest = host.guest(DriverSettings::default());
    let needed = (GUEST_BASE + (4 << 20)) / PAGE / 8;
    let (reader, _writer) = std::io::pipe().unwrap();
    let (short, whole) = (memfd(needed - 1), memfd(needed));
    let refused: [(u64, u64, &OwnedFd); 7] = [
        (needed - 1, 0, &short),
        (needed, 0, &short),
        (needed, 1, &whole),
        (0, 0, &whole),
        (1 << 40, 0, &whole),
        (needed, u64::MAX - 100, &whole),
        (needed, 0, &reader.into()),
    ];
    for (len, offset, file) in refused {
        let mut guest = host.guest(DriverSettings::default());
        guest.driver.front.post_u64(request::SET_FEATURES, guest.driver.features() | LOG_ALL).unwrap();
        assert!(guest.driver.front.set_log(len, offset, file.as_fd()).is_err(), "{len}, {offset}");
    }
    // An unused log is not checked; in use it is too short.
    let mut guest = host.guest(DriverSettings::default());
    guest.driver.front.set_log(needed - 1, 0, short.as_fd()).unwrap();
    assert!(guest.echoes());
    assert!(guest.driver.front.post_u64(request::SET_FEATURES, guest.driver.features() | LOG_ALL).is_err());
    // Memory, or a used ring, without bits in the log.
    let file = memfd(1 << 20);
    let beyond = MemoryEntry {
        guest_address: GUEST_BASE + (4 << 20),
        size: 1 << 20,
        user_address: USER_BASE + (4 << 20),
        file_offset: 0,
    };
    let (_host, mut guest) = logged(DriverSettings::default());
    assert!(guest.driver.front.change_memory(request::ADD_MEM_REG, beyond, &[file.as_fd()]).is_err());
    for address in [GUEST_BASE + (4 << 20) - 100, 1 << 50, u64::MAX] {
        let (_host, mut guest) = logged(DriverSettings::default());
        assert!(log_ring(&mut guest.driver, &guest.queues[0].queue, Some(address)).is_err(), "{address:#x}");
    }
    assert!(honest.echoes());
}

#[test]
fn truncated_dirty_log_stops_only_its_queue() {
    let host = TestHost::new();
    let (mut guest, mut honest) =
        (host.guest(DriverSettings::default()), host.guest(DriverSettings::default()));
    let len = (GUEST_BASE + (4 << 20)) / PAGE / 8;
    let file = memfd(len);
    guest.driver.front.set_log(len, 0, file.as_fd()).unwrap();
    set_logging(&mut guest, true);
    assert!(guest.echoes());
    ftruncate(&file, 0).unwrap();
    guest.queues[0].send(b"echo");
    assert!(guest.queues[0].queue.wait_broken(TIMEOUT));
    assert!(honest.echoes());
}

/// Starts a device as QEMU does during a migration: feature, queues, then the log.
#[test]
fn migrating_guests_queue_waits_for_its_log() {
    let host = TestHost::new();
    let mut guest = host.guest(DriverSettings::default());
    set_logging(&mut guest, true);
    guest.queues[0].send(b"echo");
    assert!(guest.queues[0].queue.wait_used(std::time::Duration::from_millis(50)).is_err());
    guest.driver.share_log().unwrap();
    guest.queues[0].receive();
    assert!(guest.driver.dirty_pages().is_superset(&pages_of(guest.queues[0].answer)));
}
