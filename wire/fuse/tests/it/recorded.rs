//! Decoding of requests recorded from a real kernel.

use std::collections::HashSet;
use tombolo_wire_fuse::init::{Capabilities, Negotiation, Preferences, negotiate};
use tombolo_wire_fuse::layout::attr::SetattrValid;
use tombolo_wire_fuse::layout::header::InHeader;
use tombolo_wire_fuse::request::LockKind;
use tombolo_wire_fuse::{Decoded, Extent, Request, flags};
use zerocopy::FromBytes;

const LINUX_6_18: &str = include_str!("../corpus/linux-6.18.txt");

fn corpus() -> Vec<Vec<u8>> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    LINUX_6_18
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.as_bytes().chunks(2).map(byte).collect())
        .collect()
}

fn decode(bytes: &[u8]) -> Decoded<'_> {
    let agreed = Capabilities::SETXATTR_EXT | Capabilities::CREATE_SUPP_GROUP;
    Request::decode(bytes, agreed).unwrap_or_else(|error| panic!("{error}: {bytes:02x?}"))
}

/// Returns `true` if a recorded request satisfies the predicate.
fn has(what: impl Fn(&Request<'_>) -> bool) -> bool {
    corpus().iter().any(|bytes| what(&decode(bytes).request))
}

#[test]
fn recorded_requests_decode_with_their_length() {
    let mut operations = HashSet::new();
    for bytes in corpus() {
        let header = InHeader::read_from_prefix(&bytes).unwrap().0;
        assert_eq!(Extent::of(&header).unwrap().private_bytes, bytes.len());
        let decoded = decode(&bytes);
        assert_eq!(decoded.header.pid.max(4242), 4242);
        operations.insert(decoded.header.opcode);
    }
    assert!(operations.len() >= 43, "{operations:?}");
}

#[test]
fn recorded_requests_decode_to_expected_arguments() {
    assert!(has(
        |request| matches!(request, Request::Mkdir { name, mode: 0o040_755 | 0o755, .. } if name.as_bytes() == b"dir")
    ));
    assert!(has(
        |request| matches!(request, Request::Symlink { name, target: b"dir/target" } if name.as_bytes() == b"link")
    ));
    assert!(has(
        |request| matches!(request, Request::Link { new_name, .. } if new_name.as_bytes() == b"second")
    ));
    assert!(has(|request| matches!(request, Request::Rename { name, new_name, flags: 0, .. }
        if name.as_bytes() == b"second" && new_name.as_bytes() == b"third")));
    assert!(has(|request| matches!(request, Request::Rename { flags: flags::RENAME_NOREPLACE, .. })));
    assert!(has(|request| matches!(request, Request::Setxattr { name, value: b"a value", flags: 0, .. }
        if name.as_bytes() == b"user.comment")));
    assert!(has(|request| matches!(request, Request::Write(write) if write.size_bytes == 4400)));
    assert!(has(|request| matches!(request, Request::Fallocate { offset: 0, len_bytes: 9000, mode: 0, .. })));
    assert!(has(|request| matches!(request, Request::Lseek { offset: 0, whence: flags::SEEK_HOLE, .. })));
    assert!(has(|request| matches!(request, Request::CopyFileRange64(copy) if copy.len_bytes == 4096)));
    assert!(has(|request| matches!(request, Request::Tmpfile { how } if how.mode & 0o777 == 0o600)));
    assert!(has(|request| matches!(request, Request::Setattr(set)
        if set.valid.contains(SetattrValid::SIZE) && set.fields.size == 5000)));
    assert!(has(|request| matches!(request, Request::Setlk(lock)
        if lock.kind == LockKind::Write && (lock.start, lock.last) == (5, 14) && !lock.is_flock)));
    assert!(has(|request| matches!(request, Request::Setlkw(lock) if lock.is_flock)));
}

#[test]
fn an_interrupt_names_a_request_and_is_odd_itself() {
    let corpus = corpus();
    let interrupts = corpus.iter().map(|bytes| decode(bytes)).filter_map(|decoded| match decoded.request {
        Request::Interrupt { unique } => Some((decoded.header.unique.0, unique.0)),
        _ => None,
    });
    for (own, other) in interrupts {
        assert_eq!((own & !1, own & 1), (other, 1));
    }
}

#[test]
fn the_kernel_s_offer_is_agreed_on() {
    let preferences = Preferences {
        capabilities: Capabilities::MAX_PAGES | Capabilities::CREATE_SUPP_GROUP | Capabilities::INIT_EXT,
        max_write_bytes: 1 << 20,
        max_readahead_bytes: 1 << 20,
        max_background: 64,
        time_granularity_ns: 1,
        map_alignment_log2: 0,
        max_stack_depth: 0,
        request_timeout_s: 0,
    };
    assert!(has(|request| match request {
        Request::Init(offer) => match negotiate(offer, &preferences) {
            Negotiation::Agreed(agreed) => {
                agreed.minor == 45
                    && agreed.capabilities == preferences.capabilities
                    && agreed.max_write_bytes == 1 << 20
            }
            _ => false,
        },
        _ => false,
    }));
}
