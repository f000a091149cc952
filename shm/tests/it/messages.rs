//! The messages of a link: round trips, and refusal of invalid ones.

use proptest::prelude::*;
use tombolo_shm::address::Domain;
use tombolo_shm::link::{
    Cause, DoorbellKind, Doorbells, Features, ForwardRegion, Goodbye, Hello, Incarnation, MESSAGE_BYTES_MAX,
    Message, MessageError, Protocol, RefusalCode, Refused, RegionForwarded, Welcome, Withdraw,
};

fn hello() -> Hello {
    Hello {
        version_min: 1,
        version_max: 2,
        offered: Features::from_bits_retain(0x0807_0605_0403_0201),
        required: Features::empty(),
        slots: 64,
        back_slots: 8,
        bytes: 1 << 20,
        client: Incarnation(*b"0123456789abcdef"),
        protocol: Some(Protocol::Vrpc),
        doorbells: Doorbells::FUTEX,
        export: "src".into(),
        label: "mount".into(),
    }
}

fn welcome() -> Welcome {
    Welcome {
        version: 1,
        features: Features::CALL_BACKS,
        slots: 64,
        back_slots: 8,
        bytes: 1 << 20,
        epoch: 0x0403_0201,
        doorbell: DoorbellKind::Silent,
        protocol: Protocol::OncRpc,
        server: Incarnation(*b"fedcba9876543210"),
    }
}

/// Compares byte by byte with docs/formats/link.md, so that every change of the format is noticed.
#[test]
fn hello_layout_matches_the_format() {
    let expected = [
        &b"TMBLLINK"[..],
        &[1, 0, 0, 0, 96, 0, 0, 0],
        &[1, 0, 0, 0, 2, 0, 0, 0],
        &[1, 2, 3, 4, 5, 6, 7, 8],
        &[0; 8],
        &[64, 0, 0, 0, 8, 0, 0, 0],
        &[0, 0, 16, 0, 0, 0, 0, 0],
        b"0123456789abcdef",
        &[1, 0, 0, 0, 1, 0, 0, 0],
        &[3, 0, 0, 0, 5, 0, 0, 0],
        b"srcmount",
    ]
    .concat();
    assert_eq!(Message::Hello(hello()).encode(), expected);
    assert_eq!(Message::decode(&expected), Ok(Message::Hello(hello())));
}

#[test]
fn welcome_layout_matches_the_format() {
    let mut expected = Vec::new();
    expected.extend_from_slice(b"TMBLLINK");
    expected.extend_from_slice(&[2, 0, 0, 0, 72, 0, 0, 0]);
    expected.extend_from_slice(&[1, 0, 0, 0, 2, 0, 0, 0]);
    expected.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend_from_slice(&[64, 0, 0, 0, 8, 0, 0, 0]);
    expected.extend_from_slice(&[0, 0, 16, 0, 0, 0, 0, 0]);
    expected.extend_from_slice(&[1, 2, 3, 4, 2, 0, 0, 0]);
    expected.extend_from_slice(b"fedcba9876543210");
    assert_eq!(Message::Welcome(welcome()).encode(), expected);
    assert_eq!(Message::decode(&expected), Ok(Message::Welcome(welcome())));
}

fn forward_region() -> ForwardRegion {
    ForwardRegion { domain: Domain(0x0302), user: 1000, bytes: 8 << 20, nameable: 0x43000..8 << 20 }
}

#[test]
fn forwarded_region_layout_matches_the_format() {
    let head = |kind: u8, len: u8| [&b"TMBLLINK"[..], &[kind, 0, 0, 0, len, 0, 0, 0]].concat();
    let mut expected = head(5, 48);
    expected.extend_from_slice(&[2, 3, 0, 0, 0xe8, 3, 0, 0]);
    expected.extend_from_slice(&[0, 0, 0x80, 0, 0, 0, 0, 0]);
    expected.extend_from_slice(&[0, 0x30, 4, 0, 0, 0, 0, 0]);
    expected.extend_from_slice(&[0, 0, 0x80, 0, 0, 0, 0, 0]);
    assert_eq!(Message::ForwardRegion(forward_region()).encode(), expected);
    assert_eq!(Message::decode(&expected), Ok(Message::ForwardRegion(forward_region())));
    for (is_known, outcome) in [(true, 1), (false, 2)] {
        let message = Message::RegionForwarded(RegionForwarded { domain: Domain(2), is_known });
        let expected = [head(6, 24), vec![2, 0, 0, 0, outcome, 0, 0, 0]].concat();
        assert_eq!(message.encode(), expected);
        assert_eq!(Message::decode(&expected), Ok(message));
    }
    let withdraw = Message::Withdraw(Withdraw { domain: Domain(u16::MAX) });
    assert_eq!(withdraw.encode(), [head(7, 20), vec![0xff, 0xff, 0, 0]].concat());
    assert_eq!(Message::decode(&withdraw.encode()), Ok(withdraw));
}

#[test]
fn forwarded_region_with_invalid_domain_is_refused() {
    for message in [
        Message::ForwardRegion(forward_region()),
        Message::RegionForwarded(RegionForwarded { domain: Domain(2), is_known: true }),
        Message::Withdraw(Withdraw { domain: Domain(2) }),
    ] {
        for domain in [0, 1, 1 << 16, u32::MAX] {
            let mut bytes = message.encode();
            bytes[16..20].copy_from_slice(&domain.to_le_bytes());
            assert_eq!(Message::decode(&bytes), Err(MessageError::Value { what: "domain", value: domain }));
        }
    }
    let mut outcome =
        Message::RegionForwarded(RegionForwarded { domain: Domain(2), is_known: true }).encode();
    outcome[20] = 3;
    assert_eq!(Message::decode(&outcome), Err(MessageError::Value { what: "outcome", value: 3 }));
}

#[test]
fn refusals_and_goodbyes_carry_their_reasons() {
    for code in [RefusalCode::Version, RefusalCode::Failed, RefusalCode::Other(99)] {
        let message = Message::Refused(Refused::new(code, "because"));
        assert_eq!(Message::decode(&message.encode()), Ok(message));
    }
    for cause in [Cause::Leaving, Cause::Cut, Cause::Failed] {
        let message = Message::Goodbye(Goodbye::new(cause, ""));
        assert_eq!(Message::decode(&message.encode()), Ok(message));
    }
    let long = Refused::new(RefusalCode::Failed, format_args!("a\nb\u{1b}[2J{}", "ü".repeat(300)));
    assert!(long.reason.starts_with("a?b?[2Jü") && long.reason.len() <= 256, "{}", long.reason);
    assert_eq!(Message::decode(&Message::Refused(long.clone()).encode()), Ok(Message::Refused(long)));
}

#[test]
fn lengths_must_be_exact() {
    for message in [
        Message::Hello(hello()),
        Message::Welcome(welcome()),
        Message::Refused(Refused::new(RefusalCode::Sizes, "x")),
        Message::Goodbye(Goodbye::new(Cause::Cut, "x")),
        Message::ForwardRegion(forward_region()),
        Message::RegionForwarded(RegionForwarded { domain: Domain(2), is_known: true }),
        Message::Withdraw(Withdraw { domain: Domain(2) }),
    ] {
        let bytes = message.encode();
        for len in 0..bytes.len() {
            assert_eq!(Message::decode(&bytes[..len]), Err(MessageError::Length { bytes: len }));
            // Also with a length that matches the bytes present, but not the fixed part.
            let mut cut = bytes[..len].to_vec();
            if let Some(field) = cut.get_mut(12..16) {
                field.copy_from_slice(&u32::try_from(len).expect("small").to_le_bytes());
                assert_eq!(Message::decode(&cut), Err(MessageError::Length { bytes: len }));
            }
        }
        let mut long = bytes.clone();
        long.push(0);
        long[12] += 1;
        assert_eq!(Message::decode(&long), Err(MessageError::Length { bytes: long.len() }));
    }
    let mut huge = Message::Hello(hello()).encode();
    huge.resize(MESSAGE_BYTES_MAX + 1, b'x');
    huge[12..16].copy_from_slice(&513u32.to_le_bytes());
    huge[84..88].copy_from_slice(&(513u32 - 91).to_le_bytes());
    assert_eq!(Message::decode(&huge), Err(MessageError::Length { bytes: 513 }));
}

#[test]
fn texts_must_be_texts_within_their_limits() {
    let sound = Message::Hello(hello()).encode();
    for bad in [b"s\0c", b"s\x1bc", b"s\xffc", b"\xe2\x82s"] {
        let mut bytes = sound.clone();
        bytes[88..91].copy_from_slice(bad);
        assert_eq!(Message::decode(&bytes), Err(MessageError::Text { what: "name of the export" }));
    }
    let mut bytes = sound.clone();
    bytes[80..84].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(Message::decode(&bytes), Err(MessageError::Length { bytes: 96 }));
    let mut label = sound;
    label.resize(91 + 65, b'x');
    label[12..16].copy_from_slice(&156u32.to_le_bytes());
    label[84..88].copy_from_slice(&65u32.to_le_bytes());
    assert_eq!(Message::decode(&label), Err(MessageError::Text { what: "label" }));
}

#[test]
fn undefined_numbers_in_link_messages_are_refused() {
    let spoilt = |message: &Message, at: usize| {
        let mut bytes = message.encode();
        bytes[at] = 77;
        Message::decode(&bytes)
    };
    let hello = Message::Hello(hello());
    assert_eq!(spoilt(&hello, 0), Err(MessageError::Magic));
    assert_eq!(spoilt(&hello, 8), Err(MessageError::Value { what: "kind", value: 77 }));
    assert!(matches!(spoilt(&hello, 72), Ok(Message::Hello(Hello { protocol: None, .. }))));
    let welcome = Message::Welcome(welcome());
    assert_eq!(spoilt(&welcome, 20), Err(MessageError::Value { what: "doorbell", value: 77 }));
    assert_eq!(spoilt(&welcome, 52), Err(MessageError::Value { what: "protocol", value: 77 }));
    let goodbye = Message::Goodbye(Goodbye::new(Cause::Cut, ""));
    assert_eq!(spoilt(&goodbye, 16), Err(MessageError::Value { what: "cause", value: 77 }));
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_break_message_decoding(bytes in proptest::collection::vec(any::<u8>(), 0..600), kind in 0u8..6) {
        let _ = Message::decode(&bytes);
        let mut likely = b"TMBLLINK".to_vec();
        likely.extend_from_slice(&[kind, 0, 0, 0]);
        likely.extend_from_slice(&u32::try_from(bytes.len() + 16).expect("small").to_le_bytes());
        likely.extend_from_slice(&bytes);
        if let Ok(message) = Message::decode(&likely) {
            prop_assert_eq!(Message::decode(&message.encode()), Ok(message));
        }
    }

    #[test]
    fn any_hello_arrives(export in "\\PC{0,60}", label in "\\PC{0,16}", slots: u32, bytes: u64, bits: u64) {
        let hello = Hello { export, label, slots, bytes, required: Features::from_bits_retain(bits), ..hello() };
        let message = Message::Hello(hello);
        prop_assert_eq!(Message::decode(&message.encode()), Ok(message));
    }
}
