//! Arbitrary bytes as a request of the waist's native protocol: a decoded request encodes to the same bytes,
//! and its references must lie in its domain.

use tombolo_wire_vrpc::{
    BODY_BYTES, Body, Data, Destination, FORGETS_MAX, FRAME_BYTES, FrameBuf, GROUPS_MAX, Kind, Reference,
    Request,
};

/// Runs the target.
pub fn run(bytes: &[u8]) {
    let Some((&number, rest)) = bytes.split_first() else { return };
    let Some((body, frame)) = rest.split_first_chunk::<BODY_BYTES>() else { return };
    let (header, request) = match Request::decode(number.into(), body, frame) {
        Ok(decoded) => decoded,
        Err(_) => return,
    };
    assert_eq!(request.kind(), Kind::from_number(number.into()).expect("it decoded"));
    check(&request);
    let (mut body_again, mut memory): (Body, _) = ([0xee; BODY_BYTES], [0xee; FRAME_BYTES]);
    let mut frame_again = FrameBuf::new(&mut memory);
    let kind =
        request.encode(&header, &mut body_again, &mut frame_again).expect("what decodes can be encoded");
    assert_eq!(kind.number(), u32::from(number));
    assert_eq!((&body_again, frame_again.as_bytes()), (body, frame), "{request:?}");
}

fn check(request: &Request<'_>) {
    match request {
        Request::Caller { groups, .. } => assert!(groups.iter().count() <= GROUPS_MAX),
        Request::Forget { forgets } => assert!((1..=FORGETS_MAX).contains(&forgets.iter().count())),
        Request::Write { data, .. }
        | Request::XattrSet { value: data, .. }
        | Request::Symlink { target: data, .. } => match data {
            Data::Inline(bytes) => assert!(bytes.len() <= FRAME_BYTES),
            Data::Follows { .. } => panic!("never decoded"),
            Data::One(reference) => check_references(&[*reference], data.len_bytes()),
            Data::List(list) => check_references(list.as_slice(), data.len_bytes()),
        },
        Request::Read { destination, .. }
        | Request::Readdir { destination, .. }
        | Request::XattrGet { destination, .. } => match destination {
            Destination::Inline { len_bytes } => assert!(*len_bytes as usize <= FRAME_BYTES),
            Destination::One(reference) => check_references(&[*reference], destination.len_bytes()),
            Destination::List(list) => check_references(list.as_slice(), destination.len_bytes()),
        },
        _ => {}
    }
}

fn check_references(list: &[Reference], len_bytes: u32) {
    let mut sum = 0;
    for reference in list {
        let last = reference.address() + (u64::from(reference.len_bytes()) - 1);
        assert_eq!(last >> 48, reference.address() >> 48, "{reference:?}");
        sum += u64::from(reference.len_bytes());
    }
    assert_eq!(sum, u64::from(len_bytes));
}
