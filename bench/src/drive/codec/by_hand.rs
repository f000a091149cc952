//! Manual encoding in network byte order, like the "simpler" programs of Faber's paper.

use tombolo_wire_nfs3::{Fattr3, FileType3, NfsTime3, SpecData3};
use tombolo_wire_xdr::padded;

use super::Moved;
use crate::nfs::client::Handle;

/// AUTH_SYS: stamp, "bench", uid, gid, no groups.
const CREDENTIAL_BYTES: u32 = 28;
/// Words of a call after its xid: CALL, RPC version, program NFS, version, procedure, flavor AUTH_SYS.
const CALL_WORDS: [u32; 6] = [0, 2, 100_003, 3, 0, 1];
const WRITE: u32 = 7;
const READ: u32 = 6;
/// Index of the procedure in [`CALL_WORDS`].
const PROCEDURE: usize = 4;
/// Bit of a record mark: the fragment is the record's last.
const LAST: u32 = 1 << 31;
const ATTRIBUTES_BYTES: usize = 84;
const WCC_BYTES: usize = 24;

pub fn write_call(out: &mut Vec<u8>, xid: u32, file: &Handle, offset: u64, count: u32) {
    let at = call(out, xid, WRITE, file, offset);
    word(out, count);
    word(out, 0);
    word(out, count);
    mark(out, at, padded(count as usize));
}

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
    // User, group and groups; then the empty verifier.
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

pub fn write_reply(record: &[u8], xid: u32) -> Option<Moved> {
    let mut at = open(record, xid)?;
    let before = number(record, at)?;
    at += 4 + if before == 1 { WCC_BYTES } else { 0 };
    let (attributes, at) = attributes(record, at)?;
    Some(Moved { count: number(record, at)?, data: 0..0, attributes })
}

pub fn read_reply(record: &[u8], xid: u32) -> Option<Moved> {
    let (attributes, at) = attributes(record, open(record, xid)?)?;
    let (count, len) = (number(record, at)?, number(record, at + 8)? as usize);
    let start = at + 12;
    (start + len <= record.len()).then_some(Moved { count, data: start..start + len, attributes })
}

/// Decodes `post_op_attr`; returns the offset after it too.
#[inline]
fn attributes(record: &[u8], at: usize) -> Option<(Option<Fattr3>, usize)> {
    if number(record, at)? == 0 {
        return Some((None, at + 4));
    }
    let bytes: &[u8; ATTRIBUTES_BYTES] = record.get(at + 4..)?.first_chunk()?;
    let (words, _) = bytes.as_chunks::<4>();
    let word = |number: usize| words.get(number).map_or(0, |word| u32::from_be_bytes(*word));
    let long = |number: usize| u64::from(word(number)) << 32 | u64::from(word(number + 1));
    let time = |number: usize| NfsTime3 { seconds: word(number), nseconds: word(number + 1) };
    let file_type = match word(0) {
        1 => FileType3::Regular,
        2 => FileType3::Directory,
        _ => return None,
    };
    let attributes = Fattr3 {
        file_type,
        mode: word(1),
        nlink: word(2),
        uid: word(3),
        gid: word(4),
        size: long(5),
        used: long(7),
        rdev: SpecData3 { major: word(9), minor: word(10) },
        fsid: long(11),
        fileid: long(13),
        atime: time(15),
        mtime: time(17),
        ctime: time(19),
    };
    Some((Some(attributes), at + 4 + ATTRIBUTES_BYTES))
}

/// Returns the offset after mark, header and status of a successful reply.
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
