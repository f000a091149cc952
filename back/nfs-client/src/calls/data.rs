//! File data: sent from the caller's memory, received into the caller's memory.

use tombolo_core::Result;
use tombolo_host_rpc::client::{DataLocation, ReceiveBuffer, Reply as RpcReply};
use tombolo_mem::{Sink, Source};
use tombolo_wire_nfs3::args::{CommitArgs, ReadArgs, StableHow, WriteArgs};
use tombolo_wire_nfs3::results::{CommitReply, ReadReply, WriteReply};
use tombolo_wire_nfs3::{Call, Data, FileHandleBuf, PostOpAttr, Procedure, Reply, Status, WccData};
use tombolo_wire_xdr::{Decode, Decoder};

use super::names::all_of;
use super::{JUKEBOX_DELAY, Nfs};
use crate::caller::Caller;

/// Arguments of READ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadPiece {
    pub file: FileHandleBuf,
    pub offset: u64,
}

/// Arguments of WRITE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WritePiece {
    pub file: FileHandleBuf,
    pub offset: u64,
    pub stable: StableHow,
}

/// Result of READ, whose data are in the sink.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadDone {
    pub attributes: PostOpAttr,
    pub count: usize,
    pub eof: bool,
}

/// Maximum length of the part of a READ's results that precedes the data: status, attributes, count, end of
/// file, length.
const READ_HEAD_BYTES: usize = 4 + 4 + tombolo_wire_nfs3::FATTR_BYTES + 4 + 4 + 4;

/// Locates the data in the results of a READ or LEND. `results` are the bytes received so far of
/// `results_bytes`; the answer is [`DataLocation::More`] until they contain all that precedes the data.
pub(crate) fn read_data(results: &[u8], results_bytes: usize) -> DataLocation {
    match ReadReply::decode(&mut Decoder::new(results)) {
        Ok(Reply::Ok(ok)) => ok.data.range(results_bytes).map_or(DataLocation::None, DataLocation::Data),
        Ok(Reply::Failed(..)) => DataLocation::None,
        Err(_) if results.len() < READ_HEAD_BYTES.min(results_bytes) => DataLocation::More,
        Err(_) => DataLocation::None,
    }
}

impl Nfs {
    /// Calls READ (RFC 1813 §3.3.6) into a sink, which must not exceed `read_max`. Fails if the server
    /// returns more than the sink holds.
    pub(crate) async fn read_piece(
        &self,
        caller: &Caller,
        piece: ReadPiece,
        sink: Sink,
    ) -> Result<Reply<ReadDone, PostOpAttr>> {
        let asked = sink.len();
        let count = u32::try_from(asked).unwrap_or(u32::MAX);
        let args = ReadArgs { file: piece.file.as_handle(), offset: piece.offset, count };
        let mut pause = JUKEBOX_DELAY.0;
        loop {
            let receive_buffer = ReceiveBuffer { sink: sink.clone(), find: read_data };
            let RpcReply { results, data_bytes, .. } =
                self.once(caller, Call::Read(args), None, Some(receive_buffer)).await?;
            let read = all_of::<ReadReply>(&results);
            self.rpc().recycle(results);
            let ok = match self.read(Procedure::Read, read)? {
                Reply::Ok(ok) => ok,
                Reply::Failed(Status::Jukebox, _) => {
                    self.wait_for_server(caller, &mut pause).await?;
                    continue;
                }
                Reply::Failed(status, attributes) => return Ok(Reply::Failed(status, attributes)),
            };
            if ok.count != ok.data.len_bytes() {
                return Err(self.invalid_reply(Procedure::Read, "count and data length differ"));
            }
            if ok.count as usize != data_bytes || data_bytes > asked {
                return Err(self.invalid_reply(Procedure::Read, "more data than requested"));
            }
            return Ok(Reply::Ok(ReadDone { attributes: ok.attributes, count: data_bytes, eof: ok.eof }));
        }
    }

    /// Calls WRITE (§3.3.7) with data of at most `write_max` bytes, or UNPACK if `frame` has them compressed;
    /// UNPACK fails with NOTSUPP if the server does not implement it.
    pub(crate) async fn write_piece(
        &self,
        caller: &Caller,
        piece: WritePiece,
        data: &Source,
        frame: Option<&Source>,
    ) -> Result<WriteReply> {
        let WritePiece { file, offset, stable } = piece;
        let count = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let file = file.as_handle();
        let args = WriteArgs { file, offset, count, stable, data: Data::to_send(count) };
        let mut pause = JUKEBOX_DELAY.0;
        loop {
            let results = match frame {
                None => self.once(caller, Call::Write(args), Some(data.clone()), None).await?.results,
                Some(frame) => match self.unpack(caller, piece, count, frame).await? {
                    Some(reply) => reply.results,
                    None => return Ok(Reply::Failed(Status::NotSupp, WccData::NONE)),
                },
            };
            let reply = all_of::<WriteReply>(&results);
            self.rpc().recycle(results);
            match self.read(Procedure::Write, reply)? {
                Reply::Failed(Status::Jukebox, _) => self.wait_for_server(caller, &mut pause).await?,
                Reply::Ok(ok) if ok.count > count => {
                    return Err(self.invalid_reply(Procedure::Write, "count exceeds the data sent"));
                }
                reply => return Ok(reply),
            }
        }
    }

    /// Calls COMMIT (§3.3.21) for a range; 0 bytes mean up to the end.
    pub(crate) async fn commit(
        &self,
        caller: &Caller,
        file: FileHandleBuf,
        offset: u64,
        count: u32,
    ) -> Result<CommitReply> {
        let args = CommitArgs { file: file.as_handle(), offset, count };
        self.ask(caller, Call::Commit(args), all_of).await
    }
}
