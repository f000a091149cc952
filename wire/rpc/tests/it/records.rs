//! Records in a byte stream that is divided arbitrarily.

use proptest::collection::vec;
use proptest::prelude::*;
use tombolo_wire_rpc::{Mark, RecordAssembler, RecordError, RecordScan, Records};

const LIMIT_BYTES: usize = 1 << 16;

/// Returns a record in fragments of these sizes, with the remainder in a last one.
fn marked(record: &[u8], fragment_sizes: &[usize]) -> Vec<u8> {
    let mut rest = record;
    let mut stream = Vec::new();
    for &size in fragment_sizes {
        let (fragment, after) = rest.split_at(size.min(rest.len()));
        stream.extend(Mark { last: false, len_bytes: fragment.len() as u32 }.to_bytes());
        stream.extend(fragment);
        rest = after;
    }
    stream.extend(Mark { last: true, len_bytes: rest.len() as u32 }.to_bytes());
    stream.extend(rest);
    stream
}

/// Returns all records of a stream that arrives in chunks of these sizes, repeated.
fn records(stream: &[u8], chunk_sizes: &[usize]) -> Result<Vec<Vec<u8>>, RecordError> {
    let mut assembler = RecordAssembler::new(LIMIT_BYTES);
    let mut found = Vec::new();
    let mut received = Vec::new();
    let mut stream = stream;
    for &size in chunk_sizes.iter().cycle() {
        let (chunk, after) = stream.split_at(size.min(stream.len()));
        received.extend(chunk);
        stream = after;
        let mut unread = &received[..];
        while let Some(record) = assembler.next(&mut unread)? {
            found.push(record.to_vec());
        }
        let unread_bytes = unread.len();
        received.drain(..received.len() - unread_bytes);
        if stream.is_empty() {
            break;
        }
    }
    assert!(received.is_empty(), "{} bytes were left", received.len());
    Ok(found)
}

proptest! {
    #[test]
    fn records_are_independent_of_stream_segmentation(
        sent in vec((vec(any::<u8>(), 0..200), vec(0usize..40, 0..8)), 0..6),
        chunk_sizes in vec(1usize..90, 1..10),
    ) {
        let stream: Vec<u8> = sent.iter().flat_map(|(record, sizes)| marked(record, sizes)).collect();
        let expected: Vec<_> = sent.into_iter().map(|(record, _)| record).collect();
        prop_assert_eq!(records(&stream, &chunk_sizes), Ok(expected));
    }

    #[test]
    fn arbitrary_bytes_never_lead_beyond_themselves(stream in vec(any::<u8>(), 0..300), limit in 0usize..1000) {
        let mut finder = Records::new(limit);
        let mut rest = &stream[..];
        loop {
            let told_before = finder.returned_bytes();
            match finder.find(rest, rest.len()) {
                Err(RecordError::TooLong { announced_bytes, limit_bytes }) => {
                    prop_assert!(announced_bytes > limit_bytes);
                    break;
                }
                Ok(RecordScan::Nothing { missing_bytes }) => {
                    prop_assert!(missing_bytes > 0);
                    prop_assert!(missing_bytes <= limit + Mark::BYTES);
                    break;
                }
                Ok(found) => {
                    prop_assert!(found.used_bytes() <= rest.len());
                    let body = match &found {
                        RecordScan::Record { body } | RecordScan::Piece { body, .. } => body.clone(),
                        RecordScan::Nothing { .. } => unreachable!(),
                    };
                    prop_assert!(told_before + body.len() <= limit);
                    rest = &rest[found.used_bytes()..];
                }
            }
        }
    }
}

#[test]
fn single_fragment_record_is_borrowed() {
    let stream = marked(b"record", &[]);
    let mut finder = Records::new(LIMIT_BYTES);
    assert_eq!(finder.find(&stream[..2], 2), Ok(RecordScan::Nothing { missing_bytes: 2 }));
    assert_eq!(finder.find(&stream[..4], 7), Ok(RecordScan::Nothing { missing_bytes: 3 }));
    assert_eq!(finder.find(&stream[..4], 100), Ok(RecordScan::Record { body: 4..10 }));
    assert_eq!(finder.returned_bytes(), 0);
}

#[test]
fn one_byte_and_empty_fragments_form_a_record() {
    let record: Vec<u8> = (0..200).collect();
    assert_eq!(records(&marked(&record, &[1; 199]), &[1]), Ok(vec![record.clone()]));
    assert_eq!(records(&marked(&record, &[0, 0, 1, 0, 199, 0]), &[3]), Ok(vec![record]));
    assert_eq!(records(&marked(b"", &[0; 9]), &[1]), Ok(vec![vec![]]));
}

#[test]
fn two_gibibytes_are_refused_before_they_are_sent() {
    let two_gib = Mark { last: true, len_bytes: i32::MAX as u32 };
    assert_eq!(two_gib.to_bytes(), [0xff; 4]);
    let error = Records::new(LIMIT_BYTES).find(&two_gib.to_bytes(), 4).unwrap_err();
    assert_eq!(error, RecordError::TooLong { announced_bytes: i32::MAX as usize, limit_bytes: LIMIT_BYTES });
}

#[test]
fn fragments_that_add_up_beyond_the_limit_are_refused() {
    let piece = [marked(&[7; 1000], &[1000]), marked(&[], &[])].concat();
    let stream = marked(&vec![7; LIMIT_BYTES + 1], &[1000; 100]);
    assert!(records(&stream, &[4096]).is_err());
    assert!(records(&marked(&vec![7; LIMIT_BYTES], &[1000; 3]), &[4096]).is_ok());
    assert_eq!(records(&piece, &[1]), Ok(vec![vec![7; 1000], vec![]]));
}

#[test]
fn a_record_of_two_gibibytes_has_no_mark() {
    assert_eq!(Mark::whole(5), Some(Mark { last: true, len_bytes: 5 }));
    assert_eq!(Mark::whole(1 << 31), None);
}
