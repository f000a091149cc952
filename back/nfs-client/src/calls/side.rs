//! Calls of the side program: an RPC program that our own servers offer beside NFS, with operations that NFS
//! lacks (listings of subtrees, digests, leases, compressed data; `docs/protocols/side.md`).

use std::ops::Range;

use tombolo_core::Result;
use tombolo_host_rpc::client::{Call as RpcCall, CallError, ReceiveBuffer, Reply as RpcReply};
use tombolo_mem::{Sink, Source};
use tombolo_wire_nfs3::args::AccessBits;
use tombolo_wire_nfs3::side::{
    self, Call, DigestsArgs, DigestsReply, FilePart, LeaseArgs, LeaseOk, LeaseReply, LendArgs, LendReply,
    ListArgs, ListReply, PackArgs, PackReply, UnpackArgs,
};
use tombolo_wire_nfs3::{
    Cookie3, CookieVerifier, Data, Fattr3, FileHandleBuf, PostOpAttr, Procedure, Reply, Status,
};
use tombolo_wire_xdr::{Decode, Decoder, Encoder, Error as XdrError, List, Result as XdrResult};

use super::answers::{Listing, with};
use super::data::{WritePiece, read_data};
use super::names::all_of;
use super::{JUKEBOX_DELAY, Nfs};
use crate::caller::Caller;
use crate::failure::Failure;

/// Access bits requested for each directory of a listing: those needed to list and search it.
pub(crate) const LISTING_ACCESS: AccessBits = AccessBits::READ.union(AccessBits::LOOKUP);

/// A directory in the reply of LIST.
#[derive(Debug)]
pub(crate) struct ListedDir {
    pub dir: FileHandleBuf,
    pub access: AccessBits,
    pub listing: Listing,
}

/// Result of LIST: a page of the requested directory, and complete directories below it.
#[derive(Debug)]
pub(crate) struct Subtree {
    pub top: ListedDir,
    pub below: Vec<ListedDir>,
}

/// Limits of a LIST call: the size of its reply, and the inclusion of subdirectories.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub bytes_max: u32,
    pub with_subtree: bool,
}

/// Returns the NFS procedure that error messages name instead of a procedure of the side program.
fn stands_for(procedure: side::Procedure) -> Procedure {
    match procedure {
        side::Procedure::Unpack => Procedure::Write,
        side::Procedure::Pack | side::Procedure::Digests | side::Procedure::Lend => Procedure::Read,
        side::Procedure::Lease => Procedure::Getattr,
        side::Procedure::Null | side::Procedure::List => Procedure::Readdirplus,
    }
}

impl Nfs {
    /// Returns `true` if the server has the side program; `false` also if it does not reply.
    pub(crate) async fn has_side_program(&self, caller: &Caller) -> bool {
        self.side(caller, Call::Null, |_| {}).await.is_ok_and(|results| results.is_some())
    }

    /// Calls LIST. Fails with NOTSUPP if the server was replaced by one without the side program.
    pub(crate) async fn list(
        &self,
        caller: &Caller,
        dir: FileHandleBuf,
        (cookie, verifier): (Cookie3, CookieVerifier),
        Extent { bytes_max, with_subtree }: Extent,
    ) -> Result<Reply<Subtree, PostOpAttr>> {
        let access = LISTING_ACCESS;
        let args = ListArgs { dir: dir.as_handle(), cookie, verifier, bytes_max, with_subtree, access };
        let mut pause = JUKEBOX_DELAY.0;
        loop {
            let asked = self.side(caller, Call::List(args), |call| call.results_bytes = bytes_max as usize);
            let Some(RpcReply { results, .. }) = asked.await? else {
                return Ok(Reply::Failed(Status::NotSupp, None));
            };
            let reply = subtree(&results);
            self.rpc.recycle(results);
            match self.read(Procedure::Readdirplus, reply)? {
                Reply::Failed(Status::Jukebox, _) => self.wait_for_server(caller, &mut pause).await?,
                reply => return Ok(reply),
            }
        }
    }

    /// Calls DIGESTS, without retries after JUKEBOX.
    pub(crate) async fn digests(
        &self,
        caller: &Caller,
        file: FileHandleBuf,
        offset: u64,
        count: u32,
    ) -> Result<Reply<(Fattr3, Vec<u8>), PostOpAttr>> {
        let args = DigestsArgs { file: file.as_handle(), offset, count };
        let Some(RpcReply { results, .. }) = self.side(caller, Call::Digests(args), |_| {}).await? else {
            return Ok(Reply::Failed(Status::NotSupp, None));
        };
        let reply = DigestsReply::decode(&mut Decoder::new(&results));
        let reply = reply.map(|reply| with(reply, |ok| (ok.attributes, ok.digests.to_vec())));
        self.rpc.recycle(results);
        self.read(Procedure::Read, reply)
    }

    /// Calls LEND, without retries after JUKEBOX. Fills `sink` or fails.
    pub(crate) async fn lend(
        &self,
        caller: &Caller,
        args: LendArgs<'_>,
        sink: Sink,
    ) -> Result<Reply<(), PostOpAttr>> {
        let wanted = sink.len();
        let into = ReceiveBuffer { sink, find: read_data };
        let asked = self.side(caller, Call::Lend(args), |call| call.receive_buffer = Some(into));
        let Some(reply) = asked.await? else {
            return Ok(Reply::Failed(Status::NotSupp, None));
        };
        let read = all_of::<LendReply>(&reply.results);
        self.rpc.recycle(reply.results);
        match self.read(Procedure::Read, read)? {
            Reply::Ok(_) if reply.data_bytes == wanted => Ok(Reply::Ok(())),
            Reply::Ok(_) => Err(self.invalid_reply(Procedure::Read, "not as much data as requested")),
            Reply::Failed(status, attributes) => Ok(Reply::Failed(status, attributes)),
        }
    }

    /// Calls PACK, without retries after JUKEBOX. Fills `sink` with all parts or fails; returns the file's
    /// attributes and the number of compressed bytes received.
    pub(crate) async fn packed(
        &self,
        caller: &Caller,
        file: FileHandleBuf,
        parts: &[Range<u64>],
        sink: Sink,
    ) -> Result<Reply<(Fattr3, usize), PostOpAttr>> {
        let listed = listed(parts);
        let parts = List::decode(&mut Decoder::new(&listed))
            .map_err(|_| self.invalid_reply(Procedure::Read, "parts of a file that cannot be listed"))?;
        let args = PackArgs { file: file.as_handle(), parts };
        let results_bytes = sink.len() + PACKED_REST_BYTES;
        let asked = self.side(caller, Call::Pack(args), |call| call.results_bytes = results_bytes);
        let Some(reply) = asked.await? else {
            return Ok(Reply::Failed(Status::NotSupp, None));
        };
        let read = match PackReply::decode(&mut Decoder::new(&reply.results)) {
            Ok(Reply::Ok(ok)) => match unpack(ok.frame, &sink) {
                true => Ok(Reply::Ok((ok.attributes, ok.frame.len()))),
                false => Err(self.invalid_reply(Procedure::Read, "not the data requested, compressed")),
            },
            Ok(Reply::Failed(status, attributes)) => Ok(Reply::Failed(status, attributes)),
            Err(error) => self.read(Procedure::Read, Err(error)),
        };
        self.rpc.recycle(reply.results);
        read
    }

    /// Calls LEASE, without retries after JUKEBOX. A call that waits for a recall is answered at the recall
    /// or after a timeout.
    pub(crate) async fn lease(&self, caller: &Caller, args: LeaseArgs<'_>) -> Result<Reply<LeaseOk, ()>> {
        let Some(reply) = self.side(caller, Call::Lease(args), |_| {}).await? else {
            return Ok(Reply::Failed(Status::NotSupp, ()));
        };
        let read = all_of::<LeaseReply>(&reply.results);
        self.rpc.recycle(reply.results);
        self.read(Procedure::Getattr, read)
    }

    /// Calls UNPACK: a WRITE of `count` bytes, compressed in `frame`. Makes one call, whose reply is not
    /// decoded; returns `None` if the server lacks the program or procedure.
    pub(super) async fn unpack(
        &self,
        caller: &Caller,
        WritePiece { file, offset, stable }: WritePiece,
        count: u32,
        frame: &Source,
    ) -> Result<Option<RpcReply>> {
        let data = Data::to_send(u32::try_from(frame.len()).unwrap_or(u32::MAX));
        let args = UnpackArgs { file: file.as_handle(), offset, count, stable, frame: data };
        self.side(caller, Call::Unpack(args), |call| call.data = Some(frame.clone())).await
    }

    /// Makes one call, to which `complete` adds data, buffers and the size of the results. Returns `None` if
    /// the server lacks the program or procedure.
    async fn side(
        &self,
        caller: &Caller,
        call: Call<'_>,
        complete: impl FnOnce(&mut RpcCall<'_>),
    ) -> Result<Option<RpcReply>> {
        let procedure = stands_for(call.procedure());
        let pending = {
            let program = Some((side::PROGRAM, side::VERSION));
            let (interrupt, credential) =
                (caller.interrupt.clone(), caller.credential(self.stamp, &self.machine));
            let mut rpc_call =
                RpcCall { program, interrupt, ..RpcCall::new(call.procedure().number(), credential) };
            complete(&mut rpc_call);
            rpc_call.bulk = rpc_call.receive_buffer.is_some() || rpc_call.data.is_some();
            self.rpc.call(rpc_call, |xdr| {
                xdr.value(&call);
            })
        };
        match pending.await {
            Ok(reply) => Ok(Some(reply)),
            Err(CallError::NotServed { .. }) => Ok(None),
            Err(source) => Err(Failure::Call { procedure, source }.into()),
        }
    }
}

/// Maximum number of bytes by which PACK's results exceed the data, also if the data cannot be compressed.
const PACKED_REST_BYTES: usize = 4 << 10;

fn listed(parts: &[Range<u64>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut xdr = Encoder::new(&mut bytes);
    for part in parts {
        let count = u32::try_from(part.end.saturating_sub(part.start)).unwrap_or(u32::MAX);
        xdr.value(&Some(FilePart { offset: part.start, count }));
    }
    xdr.value(&None::<FilePart>);
    bytes
}

/// Decompresses a frame into `sink`. Returns `false` unless it fills the sink exactly.
fn unpack(frame: &[u8], sink: &Sink) -> bool {
    let mut data = vec![0; sink.len()];
    let count = zstd::bulk::decompress_to_buffer(frame, &mut data);
    count.is_ok_and(|count| count == data.len()) && sink.write_at(0, &data) == data.len()
}

fn subtree(results: &[u8]) -> XdrResult<Reply<Subtree, PostOpAttr>> {
    let reply = ListReply::decode(&mut Decoder::new(results))?;
    let mut dirs = reply.into_iter();
    let top = dirs.next().ok_or(XdrError::Short { missing_bytes: 1 })?;
    let listed = |side::ListedDir { dir, access, page }: side::ListedDir<'_>| {
        with(page, |page| ListedDir { dir: dir.to_owned(), access, listing: page.into() })
    };
    let top = match listed(top) {
        Reply::Ok(top) => top,
        Reply::Failed(status, attributes) => return Ok(Reply::Failed(status, attributes)),
    };
    let below = dirs.filter_map(|dir| match listed(dir) {
        // Partial listings are useless: the directory is listed from the start later.
        Reply::Ok(dir) if dir.listing.eof => Some(dir),
        _ => None,
    });
    Ok(Reply::Ok(Subtree { below: below.collect(), top }))
}
