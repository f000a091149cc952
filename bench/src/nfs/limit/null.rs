//! Null NFS server with constant replies: shows the cost of callers and network. Written data are dropped on
//! receipt; read data are zeros.
//!
//! Its nodes are fictitious, described by their handles alone.

use std::io;
use std::io::IoSlice;

use tombolo_wire_nfs3::args::ReadArgs;
use tombolo_wire_nfs3::mount::{Flavors, MntOk, MntReply};
use tombolo_wire_nfs3::results::{
    AccessOk, AccessReply, CommitOk, CommitReply, FsinfoOk, FsinfoReply, GetattrReply, LookupOk, LookupReply,
    PathconfReply, Properties, ReadOk, ReadReply, SetattrReply, WriteOk, WriteReply,
};
use tombolo_wire_nfs3::{
    Call, Fattr3, FileHandle, FileHandleBuf, FileType3, NfsTime3, PROGRAM, Procedure, SpecData3, Status,
    WccData, WriteVerifier, mount,
};
use tombolo_wire_rpc::{Accepted, AuthFlavor, CallHeader, Mark, ReplyHeader};
use tombolo_wire_xdr::{Decoder, Encoder, padded};

use crate::nfs::Stream;
use crate::nfs::client::Records;

const READ_BYTES: usize = 256 << 10;
/// Bytes of a call that are examined: header and arguments without file data.
const HEAD_BYTES: usize = 512;
/// Maximum READ and WRITE.
const TRANSFER_BYTES: u32 = 1 << 20;
static ZEROS: [u8; TRANSFER_BYTES as usize] = [0; TRANSFER_BYTES as usize];

/// Answers calls until the client disconnects.
pub fn converse(mut stream: Stream) -> io::Result<()> {
    let mut records = Records::new(HEAD_BYTES);
    let mut buffer = vec![0; READ_BYTES];
    let mut replies = Vec::new();
    loop {
        let got = match stream.read(&mut buffer)? {
            0 => return Ok(()),
            count => count,
        };
        records.feed(&buffer[..got], |call| {
            let data_bytes = answer(call.head, call.len, &mut replies)?;
            if data_bytes == 0 {
                return Ok(());
            }
            let data = ZEROS.get(..padded(data_bytes)).unwrap_or(&ZEROS);
            let sent = stream.write_parts(&mut [IoSlice::new(&replies), IoSlice::new(data)]);
            replies.clear();
            sent
        })?;
        stream.write_all(&replies)?;
        replies.clear();
    }
}

/// Maximum file size in FSINFO, above any client's request.
const PLENTY: u64 = 1 << 50;
const FINEST: NfsTime3 = NfsTime3 { seconds: 0, nseconds: 1 };

/// Appends the reply to a call of `call_bytes`, without file data; returns the number of data bytes that must
/// follow it, without padding.
pub fn answer(call: &[u8], call_bytes: usize, replies: &mut Vec<u8>) -> io::Result<usize> {
    let mut xdr = Decoder::new(call);
    let not_served = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    let header = CallHeader::receive(&mut xdr).map_err(not_served)?;
    let at = replies.len();
    replies.extend_from_slice(&[0; Mark::BYTES]);
    let mut out = Encoder::new(replies);
    out.value(&ReplyHeader::accept(header.xid, Accepted::Success));
    let results = results(&header, &mut xdr, call_bytes, &mut out);
    if results.is_none() {
        out.truncate(0);
        out.value(&ReplyHeader::accept(header.xid, Accepted::ProcUnavail));
    }
    let data_bytes = results.unwrap_or_default();
    let len = out.position() + padded(data_bytes);
    if let (Some(mark), Some(place)) = (Mark::whole(len), replies.get_mut(at..at + Mark::BYTES)) {
        place.copy_from_slice(&mark.to_bytes());
    }
    Ok(data_bytes)
}

/// Encodes the results of a procedure; `None` if it is not served.
fn results(
    header: &CallHeader<'_>,
    xdr: &mut Decoder<'_>,
    call_bytes: usize,
    out: &mut Encoder<'_>,
) -> Option<usize> {
    if header.program == mount::PROGRAM {
        match mount::Procedure::from_number(header.procedure)? {
            mount::Procedure::Null | mount::Procedure::Umnt => {}
            mount::Procedure::Mnt => {
                let handle = Node::ROOT.handle()?;
                let flavors = Flavors::new(&[AuthFlavor::SYS])?;
                out.value(&MntReply::Ok(MntOk { handle: handle.as_handle(), flavors }));
            }
            _ => return None,
        }
        return Some(0);
    }
    let procedure = Procedure::from_number(header.procedure).filter(|_| header.program == PROGRAM)?;
    let call = Call::decode(procedure, xdr, call_bytes).ok()?;
    match call {
        Call::Read(read) => return Some(read_reply(&read, out)),
        Call::Write(_) | Call::Commit(_) | Call::Setattr(_) => change(&call, out)?,
        Call::Fsinfo(_) => drop(out.value(&FsinfoReply::Ok(volume()))),
        // Clients do not need PATHCONF, and send no FSSTAT.
        Call::Pathconf(_) => drop(out.value(&PathconfReply::Failed(Status::NotSupp, None))),
        Call::Null => {}
        Call::Getattr(file) => drop(out.value(&GetattrReply::Ok(Node::of(file).attributes()))),
        Call::Access(args) => {
            let attributes = Some(Node::of(args.object).attributes());
            out.value(&AccessReply::Ok(AccessOk { attributes, access: args.access }));
        }
        Call::Lookup(args) => {
            let node = Node::named(args.name);
            let (object, attributes) = (node.handle()?, Some(node.attributes()));
            let object = object.as_handle();
            out.value(&LookupReply::Ok(LookupOk { object, attributes, dir_attributes: None }));
        }
        _ => return None,
    }
    Some(0)
}

/// Encodes a READ reply of zeros, up to the file's end.
fn read_reply(args: &ReadArgs<'_>, out: &mut Encoder<'_>) -> usize {
    let node = Node::of(args.file);
    let left = node.size.saturating_sub(args.offset);
    let count = args.count.min(TRANSFER_BYTES).min(u32::try_from(left).unwrap_or(u32::MAX));
    let eof = u64::from(count) == left;
    out.value(&ReadReply::Ok(ReadOk::to_send(Some(node.attributes()), count, eof)));
    count as usize
}

fn change(call: &Call<'_>, out: &mut Encoder<'_>) -> Option<()> {
    match call {
        Call::Write(args) => out.value(&WriteReply::Ok(WriteOk {
            file_wcc: wcc(args.file),
            count: args.count,
            committed: args.stable,
            verifier: WriteVerifier::default(),
        })),
        Call::Commit(args) => out.value(&CommitReply::Ok(CommitOk {
            file_wcc: wcc(args.file),
            verifier: WriteVerifier::default(),
        })),
        Call::Setattr(args) => out.value(&SetattrReply::Ok(wcc(args.object))),
        _ => return None,
    };
    Some(())
}

/// Returns the attributes after a change, as most servers send them.
fn wcc(file: FileHandle<'_>) -> WccData {
    WccData { before: None, after: Some(Node::of(file).attributes()) }
}

/// Returns the parameters of the fictitious file system.
fn volume() -> FsinfoOk {
    FsinfoOk {
        attributes: None,
        read_max: TRANSFER_BYTES,
        read_preferred: TRANSFER_BYTES,
        read_multiple: 1,
        write_max: TRANSFER_BYTES,
        write_preferred: TRANSFER_BYTES,
        write_multiple: 1,
        readdir_preferred: TRANSFER_BYTES,
        file_size_max: PLENTY,
        time_delta: FINEST,
        properties: Properties::HOMOGENEOUS | Properties::CAN_SET_TIME,
    }
}

/// Prefix of names of files whose size is the number after it, all zeros. Every other file is empty.
pub const READ_PREFIX: &str = "read-";
const EPOCH: NfsTime3 = NfsTime3 { seconds: 0, nseconds: 0 };

/// A fictitious node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    directory: bool,
    pub size: u64,
}

impl Node {
    pub const ROOT: Self = Self { directory: true, size: 0 };

    pub fn named(name: &[u8]) -> Self {
        let number = name.strip_prefix(READ_PREFIX.as_bytes()).and_then(|number| str::from_utf8(number).ok());
        let size = number.and_then(|number| number.parse().ok()).unwrap_or_default();
        Self { directory: false, size }
    }

    /// Returns the node of a handle; a handle of another server counts as a file.
    pub fn of(handle: FileHandle<'_>) -> Self {
        let kind = handle.as_bytes().split_last_chunk();
        match kind {
            Some((b"null dir", size)) => Self { directory: true, size: u64::from_be_bytes(*size) },
            Some((_, size)) => Self { directory: false, size: u64::from_be_bytes(*size) },
            None => Self { directory: false, size: 0 },
        }
    }

    pub fn handle(self) -> Option<FileHandleBuf> {
        let kind = if self.directory { b"null dir" } else { b"nullfile" };
        let bytes = [*kind, self.size.to_be_bytes()].concat();
        FileHandle::new(&bytes).map(FileHandle::to_owned)
    }

    pub fn attributes(self) -> Fattr3 {
        Fattr3 {
            file_type: if self.directory { FileType3::Directory } else { FileType3::Regular },
            mode: if self.directory { 0o755 } else { 0o644 },
            nlink: 1,
            uid: 0,
            gid: 0,
            size: self.size,
            used: self.size,
            rdev: SpecData3 { major: 0, minor: 0 },
            fsid: 1,
            fileid: if self.directory { 1 } else { 2 + self.size },
            atime: EPOCH,
            mtime: EPOCH,
            ctime: EPOCH,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_is_encoded_in_its_handle() {
        for node in [Node::ROOT, Node::named(b"read-4096"), Node::named(b"other"), Node::named(b"read-x")] {
            assert_eq!(Node::of(node.handle().unwrap().as_handle()), node);
        }
        assert_eq!(Node::named(b"read-4096").attributes().size, 4096);
        assert_eq!(Node::named(b"other").attributes().file_type, FileType3::Regular);
        assert_eq!(Node::ROOT.attributes().file_type, FileType3::Directory);
    }
}
