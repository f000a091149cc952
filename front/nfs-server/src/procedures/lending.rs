//! LEND of the side program: file data of another server from this server's cache (`docs/protocols/side.md`).

use tombolo_core::Error;
use tombolo_core::fs::{PersistentHandle, within};
use tombolo_host_rpc::server::ReplyData;
use tombolo_wire_nfs3::Status;
use tombolo_wire_nfs3::attr::weak_attr;
use tombolo_wire_nfs3::results::ReadOk;
use tombolo_wire_nfs3::side::{LendArgs, LendReply};

use crate::caller::Caller;
use crate::failure::{Failure, Result, reply};

/// Executes LEND. The data follows the results.
pub(crate) async fn lend(caller: &Caller<'_>, args: LendArgs<'_>, data: &mut Option<ReplyData>) -> LendReply {
    let lent = lent(caller, args).await.map(|lent| {
        *data = Some(lent);
        ReadOk::to_send(None, args.count, false)
    });
    reply(lent, None)
}

async fn lent(caller: &Caller<'_>, args: LendArgs<'_>) -> Result<ReplyData> {
    let target = caller.target(args.export).await?;
    if args.count == 0 || args.count > caller.transfer_max() {
        return Err(Failure(Status::Inval));
    }
    let count = args.count as usize;
    let lease = caller.buffers.take(count).ok_or(Failure(Status::Jukebox))?;
    let file = PersistentHandle { kind: args.kind.cast_signed(), bytes: args.file.as_bytes().into() };
    let (into, version) = (lease.sink(0..count), weak_attr(&args.version));
    let lent = within(target.export.file_system.lending(), |lending| {
        lending.lend(&target.cx, &file, &version, args.offset, into)
    });
    match lent.resolve().await {
        Ok(()) => Ok(ReplyData::new(lease, count)),
        // `Stale` concerns the other server's file; a STALE reply would concern this export.
        Err(Error::Stale) => Err(Failure(Status::NoEnt)),
        Err(error) => Err(error.into()),
    }
}
