//! Arbitrary bytes as a message of a link, on the socket and in a file's page: decoded messages encode to the
//! same message, a server agrees to nothing beyond its limits, and a client accepts nothing that it did not
//! offer.

use tombolo_shm::link::{
    Agreement, Epoch, Features, Hello, Incarnation, Limits, MESSAGE_BYTES_MAX, Message, Welcome,
};

/// Runs the target.
pub fn run(bytes: &[u8]) {
    decoded(bytes);
    // The same after a valid header, which is hard to find by chance.
    let Some((&kind, rest)) = bytes.split_first() else { return };
    let len = u32::try_from(rest.len() + 16).unwrap_or(u32::MAX);
    let mut framed = b"TMBLLINK".to_vec();
    framed.extend_from_slice(&u32::from(kind % 6).to_le_bytes());
    framed.extend_from_slice(&len.to_le_bytes());
    framed.extend_from_slice(rest);
    decoded(&framed);
}

fn decoded(bytes: &[u8]) {
    let Ok(message) = Message::decode(bytes) else { return };
    assert!(bytes.len() <= MESSAGE_BYTES_MAX);
    let encoded = message.encode();
    assert!(encoded.len() <= MESSAGE_BYTES_MAX);
    assert_eq!(Message::decode(&encoded).as_ref(), Ok(&message));
    match message {
        Message::Hello(hello) => served(&hello),
        Message::Welcome(welcome) => believed(&welcome),
        _ => {}
    }
}

fn served(hello: &Hello) {
    let limits = Limits { slots: 128, back_slots: 16, bytes: 4 << 20, ..Limits::default() };
    let epoch = Epoch::new(1).expect("not zero");
    let Ok(agreement) = limits.agree(hello, epoch, Incarnation([1; 16])) else { return };
    assert!(agreement.layout.slots() <= hello.slots.min(limits.slots));
    assert!(agreement.layout.bytes() <= hello.bytes.min(limits.bytes));
    assert!(agreement.features.contains(hello.required));
    assert!(hello.doorbells.contains(agreement.doorbell.into()));
    // An honest client accepts a server's agreement.
    assert_eq!(hello.check(&agreement.welcome()), Ok(agreement));
}

fn believed(welcome: &Welcome) {
    let hello =
        Hello { offered: Features::CALL_BACKS, ..Hello::new(Incarnation([2; 16]), 256, 64, 16 << 20) };
    if let Ok(Agreement { layout, features, version, .. }) = hello.check(welcome) {
        assert!(layout.slots() <= 256 && layout.back_slots() <= 64 && layout.bytes() <= 16 << 20);
        assert!(hello.offered.contains(features) && version == 1);
    }
}
