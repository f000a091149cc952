//! Network byte order and nothing else, as the paper's "simpler" programs: each number is put where it belongs.

use tombolo_wire_xdr::padded;

use super::Moved;
use crate::nfs::client::Handle;

/// AUTH_SYS: stamp, "bench", uid, gid, no groups.
const CREDENTIAL_BYTES: u32 = 28;
const CALL_WORDS: [u32; 6] = [0, 2, 100_003, 3, 0, 1];
const WRITE: u32 = 7;
const READ: u32 = 6;
/// Which of [`CALL_WORDS`] is the procedure.
const PROCEDURE: usize = 4;
const LAST: u32 = 1 << 31;
const ATTRIBUTES_BYTES: usize = 84;
const WCC_BYTES: usize = 24;

/// See [`super::Codec::write_call`].
pub fn write_call(out: &mut Vec<u8>, xid: u32, file: &Handle, offset: u64, count: u32) {
    let at = call(out, xid, WRITE, file, offset);
    word(out, count);
    word(out, 0);
    word(out, count);
    mark(out, at, padded(count as usize));
}

/// See [`super::Codec::read_call`].
pub fn read_call(out: &mut Vec<u8>, xid: u32, file: &Handle, offset: u64, count: u32) {
    let at = call(out, xid, READ, file, offset);
    word(out, count);
    mark(out, at, 0);
}

#[inline]
fn call(out: &mut Vec<u8>, xid: u32, procedure: u32, file: &Handle, offset: u64) -> usize {
    let at = out.len();
    word(out, 0);
    word(out, xid);
    for (number, value) in CALL_WORDS.into_iter().enumerate() {
        word(out, if number == PROCEDURE { procedure } else { value });
    }
    word(out, CREDENTIAL_BYTES);
    word(out, 0);
    word(out, 5);
    out.extend_from_slice(b"bench\0\0\0");
    // uid, gid and groups; then the verifier, which is none.
    for _ in 0..5 {
        word(out, 0);
    }
    let file = file.as_handle();
    let bytes = file.as_bytes();
    word(out, bytes.len() as u32);
    out.extend_from_slice(bytes);
    out.resize(out.len() + padded(bytes.len()) - bytes.len(), 0);
    out.extend_from_slice(&offset.to_be_bytes());
    at
}

#[inline]
fn word(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_be_bytes());
}

#[inline]
fn mark(out: &mut [u8], at: usize, data_bytes: usize) {
    let len = (out.len() - at - 4 + data_bytes) as u32;
    if let Some(place) = out.get_mut(at..at + 4) {
        place.copy_from_slice(&(len | LAST).to_be_bytes());
    }
}

/// See [`super::Codec::write_reply`].
pub fn write_reply(record: &[u8], xid: u32) -> Option<Moved> {
    let mut at = open(record, xid)?;
    let before = number(record, at)?;
    at += 4 + if before == 1 { WCC_BYTES } else { 0 };
    let after = number(record, at)?;
    at += 4 + if after == 1 { ATTRIBUTES_BYTES } else { 0 };
    Some(Moved { count: number(record, at)?, data: 0..0 })
}

/// See [`super::Codec::read_reply`].
pub fn read_reply(record: &[u8], xid: u32) -> Option<Moved> {
    let mut at = open(record, xid)?;
    let attributes = number(record, at)?;
    at += 4 + if attributes == 1 { ATTRIBUTES_BYTES } else { 0 };
    let (count, len) = (number(record, at)?, number(record, at + 8)? as usize);
    at += 12;
    (at + len <= record.len()).then_some(Moved { count, data: at..at + len })
}

/// Behind mark, header and status.
#[inline]
fn open(record: &[u8], xid: u32) -> Option<usize> {
    const GOOD: [u8; 24] = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let good = record.get(8..8 + GOOD.len())? == GOOD;
    (good && number(record, 4)? == xid).then_some(8 + GOOD.len())
}

#[inline]
fn number(record: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*record.get(at..)?.first_chunk()?))
}
