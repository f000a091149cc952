//! Encoding and decoding allocate nothing, including lists and listings.

use std::hint::black_box;

use crate::common::{Message, encode_outcome, encode_request, samples};
use tombolo_allocations::of_this_thread;
use tombolo_core::fs::DirEntry;
use tombolo_wire_vrpc::listing::{Listing, ListingWriter};
use tombolo_wire_vrpc::*;

/// Returns the number of allocations on this thread during `run`.
fn allocations(run: impl FnOnce()) -> u64 {
    let before = of_this_thread();
    run();
    of_this_thread() - before
}

fn walk(request: &Request<'_>) {
    match request {
        Request::Caller { groups, .. } => assert!(groups.iter().map(black_box).count() <= GROUPS_MAX),
        Request::Forget { forgets } => assert!(forgets.iter().map(black_box).count() <= FORGETS_MAX),
        _ => {}
    }
}

#[test]
fn no_request_allocates() {
    let (mut body, mut memory) = ([0; BODY_BYTES], [0; FRAME_BYTES]);
    for (header, request) in samples::requests() {
        let Message { kind, body: sent, frame } = encode_request(&header, &request).unwrap();
        let count = allocations(|| {
            let (header, request) = Request::decode(kind, &sent, &frame).unwrap();
            walk(&request);
            request.encode(&header, &mut body, &mut FrameBuf::new(&mut memory)).unwrap();
        });
        assert_eq!(count, 0, "{request:?}");
        assert_eq!(body, sent);
    }
}

#[test]
fn no_answer_allocates() {
    let (mut body, mut memory) = ([0; BODY_BYTES], [0; FRAME_BYTES]);
    for (kind, outcome) in samples::replies() {
        let message = encode_outcome(kind, &outcome).unwrap();
        let count = allocations(|| {
            let outcome = Reply::decode(kind, message.kind, &message.body, &message.frame).unwrap();
            let mut frame = FrameBuf::new(&mut memory);
            match outcome {
                Ok(reply) => reply.encode(kind, &mut body, &mut frame).unwrap(),
                Err(status) => encode_failure(kind, &status.into(), &mut body),
            };
            if let Ok(Reply::Readdir(Returned::Inline(bytes), _)) = outcome {
                list(bytes);
            }
        });
        assert_eq!(count, 0, "{outcome:?}");
        assert_eq!(body, message.body);
    }
    assert_eq!(allocations(|| drop(black_box(Box::new(7)))), 1, "allocations are counted");
}

fn list(bytes: &[u8]) {
    let mut memory = [0; FRAME_BYTES];
    let mut frame = FrameBuf::new(&mut memory);
    let mut writer = ListingWriter::new(&mut frame);
    for entry in Listing::new(bytes).entries() {
        let entry = entry.unwrap();
        let entry: DirEntry<'_> = entry.as_dir_entry();
        assert!(writer.push(&entry));
    }
    assert_eq!(frame.as_bytes(), bytes);
}
