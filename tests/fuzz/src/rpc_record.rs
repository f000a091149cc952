//! Arbitrary bytes as a TCP stream of RPC records, and each record as a call and as a reply: the records must
//! not depend on the segmentation of the stream, and a decoded header encodes to an equivalent one.

use tombolo_wire_rpc::{CallFault, CallHeader, RecordAssembler, ReplyHeader};
use tombolo_wire_xdr::{Decode, Decoder};

use crate::xdr::encoded;

const LIMIT_BYTES: usize = 1 << 12;

/// Runs the target.
pub fn run(bytes: &[u8]) {
    let Some((&chunk_bytes, stream)) = bytes.split_first() else { return };
    let at_once = records(stream, stream.len().max(1));
    let in_chunks = records(stream, usize::from(chunk_bytes).max(1));
    assert_eq!(at_once, in_chunks);
    for record in &at_once {
        assert!(record.len() <= LIMIT_BYTES);
        headers(record);
    }
    headers(stream);
}

/// Returns the records of a stream that arrives in chunks, up to its end or its first violation.
fn records(stream: &[u8], chunk_bytes: usize) -> Vec<Vec<u8>> {
    let mut assembler = RecordAssembler::new(LIMIT_BYTES);
    let mut found = Vec::new();
    let mut received = Vec::new();
    for chunk in stream.chunks(chunk_bytes) {
        received.extend_from_slice(chunk);
        let mut unread = &received[..];
        loop {
            match assembler.next(&mut unread) {
                Err(_) => return found,
                Ok(None) => break,
                Ok(Some(record)) => found.push(record.to_vec()),
            }
        }
        let left = unread.len();
        received.drain(..received.len() - left);
    }
    found
}

fn headers(message: &[u8]) {
    match CallHeader::receive(&mut Decoder::new(message)) {
        Ok(header) => {
            let bytes = encoded(&header);
            assert_eq!(CallHeader::receive(&mut Decoder::new(&bytes)), Ok(header));
        }
        Err(fault) => match fault.reply() {
            Some(reply) => {
                let bytes = encoded(&reply);
                assert_eq!(ReplyHeader::decode(&mut Decoder::new(&bytes)), Ok(reply));
            }
            None => assert_eq!(fault, CallFault::NotCall),
        },
    }
    if let Ok(reply) = ReplyHeader::decode(&mut Decoder::new(message)) {
        let bytes = encoded(&reply);
        assert_eq!(ReplyHeader::decode(&mut Decoder::new(&bytes)), Ok(reply));
    }
}
