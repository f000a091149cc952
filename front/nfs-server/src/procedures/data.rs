//! READ, WRITE, COMMIT (RFC 1813 §3.3.6, §3.3.7, §3.3.21).

use tombolo_core::fs::{Attr, Change, WeakAttr, Write, Written};
use tombolo_core::{Error, Stability};
use tombolo_host_rpc::server::ReplyData;
use tombolo_host_runtime::buffer_pool::Buffers;
use tombolo_mem::Source;
use tombolo_wire_nfs3::args::{CommitArgs, ReadArgs, StableHow, WriteArgs};
use tombolo_wire_nfs3::attr::{fattr3, stability, stable_how, wcc_data};
use tombolo_wire_nfs3::results::{CommitOk, CommitReply, ReadOk, ReadReply, WriteOk, WriteReply};
use tombolo_wire_nfs3::{Data, Status, WriteVerifier};

use crate::caller::{CallTarget, Caller, key_under};
use crate::failure::{Failure, Result};
use crate::openings::Opening;

/// Executes READ (RFC 1813 §3.3.6). The data follows the results.
pub(crate) async fn read(caller: &Caller<'_>, args: ReadArgs<'_>, data: &mut Option<ReplyData>) -> ReadReply {
    let limit = args.count.min(caller.transfer_max());
    let reading =
        async |target: &mut CallTarget| read_some(target, args.offset, limit, caller.buffers, data).await;
    caller.on(args.file, reading).await
}

/// Reads, and returns attributes from before the read: data newer than the attributes makes a client
/// revalidate, whereas attributes newer than the data would let it cache old data.
async fn read_some(
    target: &CallTarget,
    offset: u64,
    limit: u32,
    buffers: &Buffers,
    data: &mut Option<ReplyData>,
) -> Result<ReadOk> {
    let attr = target.file_attr().await?;
    let export = &target.export;
    export.permissions.check_read(&target.cx, target.node.id, &attr).await?;
    let remaining = attr.size.saturating_sub(offset);
    let wanted = u64::from(limit).min(remaining) as usize;
    if wanted == 0 {
        return Ok(ReadOk::to_send(Some(fattr3(&attr)), 0, remaining == 0));
    }
    let lease = buffers.take(wanted).ok_or(Failure(Status::Jukebox))?;
    let opening = export.openings.for_reading(target.node.id).await?;
    let into = lease.sink(0..wanted);
    let done = export.file_system.read(&target.cx, opening.file(), offset, into).resolve().await?;
    let count = done.count.min(wanted);
    // After a short read before the end, the next bytes may be unreadable: the next READ gets the error.
    let eof = done.eof || count as u64 == remaining;
    *data = Some(ReplyData::new(lease, count));
    Ok(ReadOk::to_send(Some(fattr3(&attr)), count as u32, eof))
}

/// Executes WRITE (§3.3.7).
pub(crate) async fn write(caller: &Caller<'_>, args: WriteArgs<'_>) -> WriteReply {
    // RFC 1813 does not say which of two differing lengths counts, so the call is refused.
    let is_clear = args.count == args.data.len_bytes();
    let data = data_of(caller, args.data, caller.transfer_max()).filter(|_| is_clear);
    let writing =
        async |target: &mut CallTarget| write_to(target, args.offset, args.stable, data.as_ref()).await;
    caller.change(args.file, writing).await
}

/// Returns the data of a call, at most `bytes_max`; `None` if its record is too short.
pub(super) fn data_of(caller: &Caller<'_>, data: Data, bytes_max: u32) -> Option<Source> {
    let range = data.range(caller.record.len()).ok()?;
    let mut bytes = caller.record.clone();
    bytes.advance(range.start);
    bytes.truncate(range.len().min(bytes_max as usize));
    Some(bytes)
}

/// Performs a WRITE of the given data; INVAL without data.
pub(super) async fn write_to(
    target: &mut CallTarget,
    offset: u64,
    stable: StableHow,
    data: Option<&Source>,
) -> Result<WriteOk> {
    // Read before the write: data lost after this point was accepted under this verifier.
    let verifier = target.export.verifier.bytes();
    // Under another verifier a duplicate counts as another write: the first one's data may have been lost.
    target.cx.key = target.cx.key.map(|key| key_under(key, verifier));
    let how = Write {
        offset,
        stability: stability(stable),
        kill_privileges: target.cx.identity.uid != 0,
        ..Write::default()
    };
    let written = write_some(target, &how, data.ok_or(Failure(Status::Inval))?).await?;
    Ok(WriteOk {
        file_wcc: target.wcc(&written.file).await,
        count: u32::try_from(written.count).unwrap_or(u32::MAX),
        committed: stable_how(written.stability),
        verifier: WriteVerifier(verifier),
    })
}

async fn write_some(target: &CallTarget, how: &Write, data: &Source) -> Result<Written> {
    let export = &target.export;
    let end = how.offset.checked_add(data.len() as u64);
    let is_too_far = !data.is_empty() && end.is_none_or(|end| end > export.profile.file_size_max);
    if !is_too_far && let Some(written) = write_at_once(target, how, data).await? {
        return Ok(written);
    }
    let attr = target.file_attr().await?;
    if is_too_far {
        return Err(Failure(Status::FBig));
    }
    if data.is_empty() {
        return Ok(Written { count: 0, stability: how.stability, file: unchanged(&attr) });
    }
    export.permissions.check_write(&target.cx, target.node.id, &attr).await?;
    let opening = export.openings.for_writing(target.node.id).await?;
    opening.set_owner(attr.uid);
    Ok(write_through(target, &opening, how, data.clone()).await?)
}

/// Writes in a single operation if no other one is needed to check the permission: to a file that is open for
/// writing, by its owner or the superuser. Returns `None` if nothing was written and the general path must be
/// taken. Back ends with `Profile::writes_by_owner` do not write to a file without a name, since they check
/// its attributes before the write; others do, and the reply is STALE all the same.
async fn write_at_once(target: &CallTarget, how: &Write, data: &Source) -> Result<Option<Written>> {
    let export = &target.export;
    let (uid, openings) = (target.cx.identity.uid, &export.openings);
    let Some(opening) = openings.cached_for_writing(target.node.id).filter(|_| !data.is_empty()) else {
        return Ok(None);
    };
    let by_owner = export.profile.writes_by_owner;
    if uid != 0 && !(by_owner && opening.owner() == uid) {
        return Ok(None);
    }
    let written = match write_through(target, &opening, &Write { by_owner, ..*how }, data.clone()).await {
        Err(Error::WouldBlock) if by_owner => return Ok(None),
        // The general path queries the file's state and, if the file is gone, drops its node.
        Err(Error::Stale) => return Ok(None),
        written => written?,
    };
    let after = written.file.after;
    if after.is_some_and(|attr| attr.nlink == 0) {
        export.gone(&target.node);
        return Err(Failure(Status::Stale));
    }
    Ok(Some(written))
}

async fn write_through(
    target: &CallTarget,
    opening: &Opening,
    how: &Write,
    data: Source,
) -> tombolo_core::Result<Written> {
    let export = &target.export;
    if how.stability == Stability::Unstable {
        opening.set_unsynced();
    }
    let written = export.file_system.write(&target.cx, opening.file(), how, data).resolve().await;
    if how.stability == Stability::Unstable {
        // The flag is set again, because a sync may have run while this write waited.
        opening.set_unsynced();
    }
    if how.stability > Stability::Unstable
        && let Err(Error::Io { .. } | Error::NoSpace | Error::QuotaExceeded) = &written
    {
        // The kernel reports a failed write-back once; this may have been the report about unstable data.
        export.verifier.change();
    }
    written
}

fn unchanged(attr: &Attr) -> Change {
    Change { before: Some(WeakAttr::from(attr)), after: Some(*attr) }
}

/// Executes COMMIT (§3.3.21). The whole file is made stable, whatever the range.
pub(crate) async fn commit(caller: &Caller<'_>, args: CommitArgs<'_>) -> CommitReply {
    let synced = caller.change(args.file, async |target| {
        let file_wcc = wcc_data(&sync(target).await?);
        // The verifier after the sync: data lost meanwhile must be sent again.
        Ok(CommitOk { file_wcc, verifier: WriteVerifier(target.export.verifier.bytes()) })
    });
    synced.await
}

async fn sync(target: &CallTarget) -> Result<Change> {
    let before = target.file_attr().await?;
    let export = &target.export;
    export.permissions.check_write(&target.cx, target.node.id, &before).await?;
    let opening = export.openings.for_writing(target.node.id).await?;
    opening.sync().await?;
    let after = target.attr().await.ok();
    Ok(Change { before: Some(WeakAttr::from(&before)), after })
}
