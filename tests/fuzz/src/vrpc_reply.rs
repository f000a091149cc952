//! Arbitrary bytes as an answer of the waist's native protocol, and as a listing: decoded values encode to
//! the same bytes.

use tombolo_wire_vrpc::listing::{Listing, ListingWriter};
use tombolo_wire_vrpc::{BODY_BYTES, Body, FRAME_BYTES, FrameBuf, Kind, Reply, Returned, encode_failure};

/// Runs the target.
pub fn run(bytes: &[u8]) {
    let Some((&number, rest)) = bytes.split_first() else { return };
    let Some(kind) = Kind::from_number(number.into()) else { return list(rest) };
    let Some((body, frame)) = rest.split_first_chunk::<BODY_BYTES>() else { return };
    let Ok(outcome) = Reply::decode(kind, kind.reply_number(), body, frame) else { return };
    if let Ok(Reply::Readdir(Returned::Inline(bytes), _)) = outcome {
        list(bytes);
    }
    let (mut body_again, mut memory): (Body, _) = ([0xee; BODY_BYTES], [0xee; FRAME_BYTES]);
    let mut frame_again = FrameBuf::new(&mut memory);
    let number = match outcome {
        Ok(reply) => {
            reply.encode(kind, &mut body_again, &mut frame_again).expect("what decodes can be encoded")
        }
        Err(status) => encode_failure(kind, &status.into(), &mut body_again),
    };
    assert_eq!(number, kind.reply_number());
    assert_eq!((&body_again, frame_again.as_bytes()), (body, frame), "{outcome:?}");
}

fn list(bytes: &[u8]) {
    if bytes.len() > FRAME_BYTES {
        return;
    }
    let mut memory = [0xee; FRAME_BYTES];
    let mut frame = FrameBuf::new(&mut memory);
    let mut writer = ListingWriter::new(&mut frame);
    let mut all = true;
    for entry in Listing::new(bytes).entries() {
        match entry {
            Ok(entry) => assert!(writer.push_with(&entry.as_dir_entry(), entry.handle)),
            Err(_) => all = false,
        }
    }
    let again = frame.as_bytes();
    assert!(bytes.starts_with(again));
    assert!(!all || again.len() == bytes.len());
}
