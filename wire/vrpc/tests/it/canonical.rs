//! Each message has one encoding: decoded messages re-encode to the same bytes, and all other bytes are
//! refused.

use crate::common::{Message, encode_all, encode_outcome, encode_request, samples};
use tombolo_core::fs::{LockRange, Name, NameError, NodeId};
use tombolo_wire_vrpc::*;

fn messages() -> Vec<Message> {
    encode_all(&(samples::requests(), samples::replies()))
}

fn is_refused_or_the_same(message: &Message) -> bool {
    message.again().is_ok_and(|again| {
        assert_eq!(&again, message, "{:?}", message.request());
        true
    })
}

/// Checks that no reserved byte, unknown flag, padding or unused field is ignored.
#[test]
fn bit_flips_are_refused_or_change_the_meaning() {
    for message in messages() {
        assert!(is_refused_or_the_same(&message), "{message:?}");
        let frame_bits = message.frame.len().min(400) * 8;
        for bit in 0..BODY_BYTES * 8 {
            let mut changed = message.clone();
            changed.body[bit / 8] ^= 1 << (bit % 8);
            is_refused_or_the_same(&changed);
        }
        for bit in 0..frame_bits {
            let mut changed = message.clone();
            changed.frame[bit / 8] ^= 1 << (bit % 8);
            is_refused_or_the_same(&changed);
        }
    }
}

#[test]
fn frames_with_missing_or_extra_bytes_are_refused() {
    for message in messages() {
        // Lists with their own entry size are checked elsewhere; no message here is a list cut at an entry's
        // end.
        for len in 0..message.frame.len() {
            let cut = Message { frame: message.frame[..len].to_vec(), ..message.clone() };
            assert!(cut.again().is_err() || cut.again() == Ok(cut.clone()), "{cut:?}");
            assert!(cut.again().is_err() || message.kind == Kind::Forget.number(), "{cut:?}");
        }
        let mut longer = message.clone();
        longer.frame.push(0);
        assert!(longer.again().is_err(), "{longer:?}");
    }
}

#[test]
fn changed_kind_is_refused_or_changes_the_meaning() {
    for message in messages() {
        let direction = message.kind & REPLY;
        for &kind in Kind::ALL {
            is_refused_or_the_same(&Message { kind: kind.number() | direction, ..message.clone() });
        }
    }
}

#[test]
fn unknown_and_reverse_kinds_are_refused() {
    let body = [0; BODY_BYTES];
    for kind in [0, 6, 15, 39, 115, u32::MAX, Kind::Null.reply_number()] {
        assert_eq!(Request::decode(kind, &body, &[]).unwrap_err(), DecodeError::UnknownKind(kind));
    }
    for kind in [Kind::Null.number(), Kind::Flush.reply_number(), u32::MAX] {
        let expected = Kind::Null.reply_number();
        assert_eq!(
            Reply::decode(Kind::Null, kind, &body, &[]).unwrap_err(),
            DecodeError::WrongKind { expected, found: kind }
        );
    }
    let mut failed = [0; BODY_BYTES];
    failed[0] = 40;
    let answer = Reply::decode(Kind::Null, Kind::Null.reply_number(), &failed, &[]);
    assert_eq!(answer.unwrap_err(), DecodeError::UnknownStatus(40));
}

#[test]
fn names_that_could_climb_out_are_refused() {
    let header = Header::default();
    let parent = NodeId::ROOT;
    let name = Name::new(b"ab").unwrap();
    let requests = [
        Request::Lookup { parent, name },
        Request::Unlink { parent, name },
        Request::Rmdir { parent, name },
        Request::Mkdir { parent, name, mode: Default::default() },
        Request::Create { parent, name, how: Default::default() },
        Request::Symlink { parent, name, target: Data::Inline(b"") },
        Request::Link { node: parent, parent, name },
        Request::Rename {
            from_parent: parent,
            from: name,
            to_parent: parent,
            to: name,
            flags: Default::default(),
        },
    ];
    for request in &requests {
        let good = encode_request(&header, request).unwrap();
        for (bad, error) in
            [(b"..", NameError::Dots), (b"/b", NameError::ForbiddenByte), (b"a\0", NameError::ForbiddenByte)]
        {
            let mut bad_message = good.clone();
            let mut replaced = 0;
            for bytes in [&mut bad_message.body[..], &mut bad_message.frame[..]] {
                while let Some(at) = bytes.windows(2).position(|pair| pair == b"ab") {
                    bytes[at..at + 2].copy_from_slice(bad);
                    replaced += 1;
                }
            }
            assert!(replaced > 0);
            assert_eq!(bad_message.request().unwrap_err(), DecodeError::Name(error), "{request:?}");
        }
    }
}

#[test]
fn references_stay_in_their_domain_and_lists_are_bounded() {
    assert!(Reference::new((1 << 48) - 4096, 4096).is_ok());
    assert!(Reference::new((1 << 48) - 4096, 4097).is_err());
    assert!(Reference::new(u64::MAX, 1).is_ok());
    assert!(Reference::new(u64::MAX, 2).is_err());
    assert!(Reference::new(0, 0).is_err());
    assert!(Reference::new(0xffff_ffff_ffff, u32::MAX).is_err());
    let most = [Reference::new(0, 1).unwrap(); REFERENCES_MAX];
    assert_eq!(References::new(&most).unwrap().len_bytes() as usize, REFERENCES_MAX);
    let more = [Reference::new(0, 1).unwrap(); REFERENCES_MAX + 1];
    assert_eq!(References::new(&more), Err(DecodeError::ListLength(REFERENCES_MAX as u64 + 1)));
    assert_eq!(References::new(&[]), Err(DecodeError::ListLength(0)));
    let huge = [Reference::new(0, u32::MAX).unwrap(); 2];
    assert!(References::new(&huge).is_err());
}

#[test]
fn maximum_messages_fit_and_larger_ones_are_not_encoded() {
    let header = Header::default();
    let (node, groups) = (NodeId(7), vec![5; GROUPS_MAX + 1]);
    let caller = |len: usize| Request::Caller { uid: 1, gid: 2, groups: Groups::new(&groups[..len]) };
    let most = encode_request(&header, &caller(GROUPS_MAX)).unwrap();
    assert_eq!(most.frame.len(), FRAME_BYTES);
    assert_eq!(most.again().as_ref(), Ok(&most));
    assert!(encode_request(&header, &caller(GROUPS_MAX + 1)).is_err());

    let pairs = vec![(node, 1); FORGETS_MAX + 1];
    let forget = |len: usize| Request::Forget { forgets: Forgets::new(&pairs[..len]) };
    let most = encode_request(&header, &forget(FORGETS_MAX)).unwrap();
    assert_eq!(most.again().as_ref(), Ok(&most));
    assert!(encode_request(&header, &forget(FORGETS_MAX + 1)).is_err());
    assert!(encode_request(&header, &forget(0)).is_err());

    let data = vec![7; FRAME_BYTES + 1];
    let file = tombolo_core::fs::File { node, open: tombolo_core::fs::OpenId(1) };
    let write =
        |len: usize| Request::Write { file, how: Default::default(), data: Data::Inline(&data[..len]) };
    let most = encode_request(&header, &write(FRAME_BYTES)).unwrap();
    assert_eq!(most.again().as_ref(), Ok(&most));
    assert_eq!(encode_request(&header, &write(FRAME_BYTES + 1)).unwrap_err(), EncodeError::FrameFull);

    let long = Message { frame: vec![7; FRAME_BYTES + 1], ..most };
    assert_eq!(long.request().unwrap_err(), DecodeError::FrameLong { extra_bytes: 1 });
}

#[test]
fn small_frequent_messages_need_no_frame() {
    for (header, request) in samples::requests() {
        let by_reference = match request {
            Request::Read { destination, .. } => !matches!(destination, Destination::List(_)),
            Request::Write { data, .. } => matches!(data, Data::One(_)),
            Request::Forget { forgets } => forgets.len() == 1,
            Request::Lookup { name, .. } | Request::Unlink { name, .. } => name.as_bytes().len() <= 27,
            _ => false,
        };
        let hot = matches!(
            request.kind(),
            Kind::Null | Kind::Getattr | Kind::Release | Kind::Flush | Kind::Fsync | Kind::Open
        );
        if by_reference || hot {
            assert!(encode_request(&header, &request).unwrap().frame.is_empty(), "{request:?}");
        }
    }
    let attr = encode_outcome(Kind::Getattr, &Ok(Reply::Attr(samples::attr()))).unwrap();
    assert!(attr.frame.len() <= 128, "attributes lie in two cache lines");
}

#[test]
fn inverted_lock_ranges_are_neither_encoded_nor_decoded() {
    for (header, request) in samples::requests() {
        if matches!(request.kind(), Kind::LockTest | Kind::Lock | Kind::Unlock) {
            let mut message = encode_request(&header, &request).unwrap();
            // The only item begins with the first and the last byte.
            message.frame[..16].copy_from_slice(&[6, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
            let error = DecodeError::Value { field: "range of a lock", value: 6 };
            assert_eq!(message.request().unwrap_err(), error);
        }
    }
    let (header, request) = samples::first(Kind::Lock);
    let Request::Lock { file, mut lock, wait } = request else { panic!() };
    lock.range = LockRange { start: 6, last: 5 };
    assert!(encode_request(&header, &Request::Lock { file, lock, wait }).is_err());
    assert!(encode_request(&header, &Request::LockTest { file, lock }).is_err());
}

#[test]
fn mismatched_reply_is_not_encoded() {
    let wrong = encode_outcome(Kind::Getattr, &Ok(Reply::Done)).unwrap_err();
    assert_eq!(wrong, EncodeError::WrongReply(Kind::Getattr));
}

#[test]
fn excess_or_misplaced_returned_data_is_refused() {
    let one = Destination::One(Reference::new(0, 8).unwrap());
    let inline = Destination::Inline { len_bytes: 8 };
    let placed = |len_bytes| Returned::Placed { len_bytes };
    assert!(one.accept(&placed(8)).is_ok() && one.accept(&placed(0)).is_ok());
    assert!(one.accept(&placed(9)).is_err() && one.accept(&placed(u32::MAX)).is_err());
    assert!(one.accept(&Returned::Inline(b"")).is_err());
    assert!(inline.accept(&Returned::Inline(b"12345678")).is_ok());
    assert!(inline.accept(&Returned::Inline(b"123456789")).is_err());
    assert!(inline.accept(&placed(0)).is_err());
}
