//! Front ends that send invalid messages, or disconnect within one.

use crate::device::{TestHost, eventually, memfd};
use rustix::event::{EventfdFlags, eventfd};
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use tombolo_vhost_driver::{DriverSettings, FrontEnd, GUEST_BASE, MemoryEntry, USER_BASE, message, request};

fn entry(guest: u64, user: u64, size: u64, file_offset: u64) -> MemoryEntry {
    MemoryEntry { guest_address: GUEST_BASE + guest, size, user_address: USER_BASE + user, file_offset }
}

/// Returns `true` if the server has disconnected.
fn is_cut_off(front: &FrontEnd) -> bool {
    front.stream().set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut rest = Vec::new();
    // Also a reset, if bytes of ours were not read.
    match front.stream().read_to_end(&mut rest) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn invalid_memory_tables_are_refused() {
    let host = TestHost::new();
    let mut honest = host.guest(DriverSettings::default());
    let file = memfd(1 << 20);
    let page = 4096;
    let tables: [&[MemoryEntry]; 8] = [
        &[entry(0, 0, 2 * page, 0), entry(page, 8 * page, page, 0)],
        &[entry(0, 0, 2 * page, 0), entry(8 * page, page, page, 0)],
        &[entry(0, 0, page, 0), entry(0, 0, page, 0)],
        &[entry(0, 0, (1 << 20) + 1, 0)],
        &[entry(0, 0, page, 1 << 20)],
        &[entry(0, 0, page, u64::MAX - 100)],
        &[entry(0, 0, 0, 0)],
        &[entry(0, 0, 1 << 50, 0)],
    ];
    for table in tables {
        let mut driver = host.connect();
        let files = vec![file.as_fd(); table.len()];
        assert!(driver.front.set_memory(table, &files).is_err(), "{table:?}");
        assert!(is_cut_off(&driver.front));
    }
    assert!(honest.echoes());
}

#[test]
fn files_that_cannot_be_mapped_are_refused() {
    let host = TestHost::new();
    let (reader, _writer) = std::io::pipe().unwrap();
    let folder = std::fs::File::open("/").unwrap();
    for file in [OwnedFd::from(reader), folder.into()] {
        let mut driver = host.connect();
        assert!(driver.front.set_memory(&[entry(0, 0, 4096, 0)], &[file.as_fd()]).is_err());
        assert!(is_cut_off(&driver.front));
    }
}

#[test]
fn memory_spans_come_and_go_under_running_queues() {
    let host = TestHost::new();
    let mut guest = host.guest(DriverSettings { queues: 2, ..DriverSettings::default() });
    let file = memfd(1 << 20);
    let span = entry(1 << 30, 1 << 30, 1 << 20, 0);
    for _ in 0..20 {
        guest.driver.front.change_memory(request::ADD_MEM_REG, span, &[file.as_fd()]).unwrap();
        assert!(guest.echoes());
        guest.driver.front.change_memory(request::REM_MEM_REG, span, &[]).unwrap();
        assert!(guest.echoes());
    }
    // The whole table again, with a request under way.
    guest.queues[0].send(b"moving house");
    guest.driver.share_memory().unwrap();
    guest.queues[0].receive();
    assert!(guest.echoes());
}

#[test]
fn invalid_queue_parameters_are_refused() {
    let host = TestHost::new();
    let mut honest = host.guest(DriverSettings::default());
    let refused: [(u32, u32, u32); 7] = [
        (request::SET_VRING_NUM, 0, 0),
        (request::SET_VRING_NUM, 0, 3),
        (request::SET_VRING_NUM, 0, 2048),
        (request::SET_VRING_NUM, 2, 128),
        (request::SET_VRING_NUM, u32::MAX, 128),
        (request::SET_VRING_BASE, 0, 65_536),
        (request::SET_VRING_ENABLE, 2, 1),
    ];
    for (number, index, value) in refused {
        let mut driver = host.connect();
        assert!(driver.front.post_state(number, index, value).is_err(), "message {number} with {value}");
        assert!(is_cut_off(&driver.front));
    }
    // Rings outside of memory: the connection stays, the queue does not run.
    let mut driver = host.connect();
    driver.share_memory().unwrap();
    for address in [0, 1, USER_BASE + 1, u64::MAX - 15, USER_BASE + (4 << 20) - 16] {
        driver.front.post_state(request::SET_VRING_NUM, 0, 128).unwrap();
        let taken = driver.front.set_vring_addresses(0, [address & !15, USER_BASE, address & !1], None);
        if taken.is_err() {
            driver = host.connect();
            driver.share_memory().unwrap();
            continue;
        }
        driver.front.set_vring_fd(request::SET_VRING_KICK, 0, None).unwrap();
        driver.front.post_state(request::SET_VRING_ENABLE, 0, 1).unwrap();
        driver.front.ask(request::GET_VRING_BASE, &[0; 8]).unwrap();
    }
    assert!(honest.echoes());
}

#[test]
fn malformed_messages_are_refused() {
    let host = TestHost::new();
    let mut honest = host.guest(DriverSettings::default());
    let nonsense: [Vec<u8>; 7] = [
        vec![0; 12],
        vec![0xFF; 64],
        message(9999, 1, &[]),
        message(request::SET_FEATURES, 1, &[1, 2, 3]),
        message(request::SET_FEATURES, 2, &[0; 8]),
        message(request::SET_MEM_TABLE, 1, &[0xFF; 8]),
        [1u32, 1, u32::MAX].iter().flat_map(|word| word.to_le_bytes()).collect(),
    ];
    for bytes in nonsense {
        let mut front = FrontEnd::new(UnixStream::connect(&host.socket).unwrap());
        front.send_raw(&bytes, &[]).unwrap();
        assert!(is_cut_off(&front), "{bytes:?}");
    }
    assert!(honest.echoes());
}

#[test]
fn features_that_were_not_offered_are_refused() {
    let host = TestHost::new();
    let mut driver = host.connect();
    // Packed rings.
    let features = driver.features() | 1 << 34;
    assert!(driver.front.post_u64(request::SET_FEATURES, features).is_err());
    assert!(is_cut_off(&driver.front));
}

#[test]
fn config_space_reads_zero_beyond_its_end() {
    let host = TestHost::new();
    let mut guest = host.guest(DriverSettings::default());
    for (offset, len) in [(0, 13), (0, 0x23), (0, 0x28), (5, 3), (12, 4), (13, 1), (200, 56)] {
        let mut expected = b"configuration".to_vec();
        expected.resize(300, 0);
        let expected = &expected[offset as usize..][..len as usize];
        assert_eq!(guest.driver.config(offset, len).unwrap(), expected);
    }
}

/// Cuts everything that a front end sends until its queues run, at every byte where a message may break.
#[test]
fn hanging_up_at_every_message_leaves_nothing_behind() {
    let host = TestHost::new();
    let mut honest = host.guest(DriverSettings::default());
    let memory = memfd(1 << 20);
    let mut table = vec![1, 0, 0, 0, 0, 0, 0, 0];
    table.extend(entry(0, 0, 1 << 20, 0).encode());
    let mut addresses = vec![0; 8];
    [0, 8192, 4096, 0u64].iter().for_each(|at| addresses.extend((USER_BASE + at).to_le_bytes()));
    let index = 0u64.to_le_bytes();
    let notifier = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let file_of = |number| match number {
        request::SET_MEM_TABLE => vec![memory.as_fd()],
        request::SET_VRING_KICK | request::SET_VRING_CALL => vec![notifier.as_fd()],
        _ => vec![],
    };
    let script: Vec<(u32, Vec<u8>)> = vec![
        (request::SET_OWNER, vec![]),
        (request::GET_FEATURES, vec![]),
        (request::GET_PROTOCOL_FEATURES, vec![]),
        (request::SET_PROTOCOL_FEATURES, 0x8209u64.to_le_bytes().to_vec()),
        (request::SET_FEATURES, (1u64 << 30 | 1 << 32).to_le_bytes().to_vec()),
        (request::GET_QUEUE_NUM, vec![]),
        (request::GET_MAX_MEM_SLOTS, vec![]),
        (request::SET_MEM_TABLE, table),
        (request::SET_VRING_NUM, (128u64 << 32).to_le_bytes().to_vec()),
        (request::SET_VRING_ADDR, addresses),
        (request::SET_VRING_BASE, index.to_vec()),
        (request::SET_VRING_CALL, index.to_vec()),
        (request::SET_VRING_KICK, index.to_vec()),
        (request::SET_VRING_ENABLE, (1u64 << 32).to_le_bytes().to_vec()),
        (request::GET_VRING_BASE, index.to_vec()),
    ];
    for stop in 0..script.len() {
        for cut in [0, 1, 11, 12, 13, 20] {
            let mut front = FrontEnd::new(UnixStream::connect(&host.socket).unwrap());
            for (number, payload) in &script[..stop] {
                if front.send(*number, payload, &file_of(*number)).is_err() {
                    break;
                }
            }
            let (number, payload) = &script[stop];
            let bytes = message(*number, 1, payload);
            let _ = front.send_raw(&bytes[..cut.min(bytes.len())], &[]);
            drop(front);
        }
    }
    assert!(honest.echoes());
    assert!(eventually(|| host.server.guest_count() <= 1), "{} guests stay", host.server.guest_count());
    assert!(host.guest(DriverSettings::default()).echoes());
}

/// Covers QEMU, which queries before SET_OWNER, and warns about unused features.
#[test]
fn config_feature_is_offered_after_set_owner_only() {
    const CONFIG: u64 = 1 << 9;
    let host = TestHost::new();
    let offered = |owns: bool| {
        let mut front = FrontEnd::new(UnixStream::connect(&host.socket).unwrap());
        if owns {
            front.post(request::SET_OWNER, &[], &[]).unwrap();
        }
        front.ask_u64(request::GET_FEATURES).unwrap();
        front.ask_u64(request::GET_PROTOCOL_FEATURES).unwrap() & CONFIG != 0
    };
    assert!(offered(true) && !offered(false));
}
