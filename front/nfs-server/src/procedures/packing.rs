//! PACK and UNPACK of the side program: compressed reads and writes (`docs/protocols/side.md`).

use tombolo_core::fs::{Attr, WeakAttr, read_whole};
use tombolo_host_runtime::buffer_pool::Lease;
use tombolo_wire_nfs3::Status;
use tombolo_wire_nfs3::attr::fattr3;
use tombolo_wire_nfs3::side::{
    COMPRESSED_BYTES_MAX, COMPRESSED_RANGES_MAX, FilePart, PackArgs, PackOk, PackReply, UnpackArgs,
    UnpackReply,
};
use tombolo_wire_xdr::{Encoder, List};

use crate::caller::{CallTarget, Caller};
use crate::failure::{Failure, Result, write_failure};
use crate::procedures::data::{data_of, write_to};

/// Executes PACK: reads parts of a file, and compresses them into one frame.
pub(crate) async fn pack(caller: &Caller<'_>, args: PackArgs<'_>, results: &mut Encoder<'_>) {
    let written = caller.on(args.file, async |file| {
        let (attr, frame) = packed(caller, file, args.parts).await?;
        results.value(&PackReply::Ok(PackOk { attributes: fattr3(&attr), frame: &frame }));
        Ok(())
    });
    write_failure(&written.await, results);
}

/// Returns a file's attributes and a frame with the requested parts. The attributes are the same before and
/// after the read, so that the data is of that version.
async fn packed(
    caller: &Caller<'_>,
    file: &CallTarget,
    parts: List<'_, FilePart>,
) -> Result<(Attr, Vec<u8>)> {
    let len: u64 = parts.into_iter().map(|part| u64::from(part.count)).sum();
    let len_max = COMPRESSED_BYTES_MAX.min(caller.transfer_max());
    let is_too_much = len > u64::from(len_max) || parts.into_iter().count() > COMPRESSED_RANGES_MAX;
    if is_too_much || len == 0 {
        return Err(Failure(Status::Inval));
    }
    let before = file.file_attr().await?;
    file.export.permissions.check_read(&file.cx, file.node.id, &before).await?;
    let is_past = |part: FilePart| part.offset.saturating_add(part.count.into()) > before.size;
    if parts.into_iter().any(is_past) {
        return Err(Failure(Status::Inval));
    }
    let lease = caller.buffers.take(len as usize).ok_or(Failure(Status::Jukebox))?;
    let is_whole = read_parts(file, parts, &lease).await?;
    let attr = file.file_attr().await?;
    if !is_whole || WeakAttr::from(&attr) != WeakAttr::from(&before) {
        return Err(Failure(Status::Jukebox));
    }
    let frame = caller.packer().pack(&file.cx, lease.source(0..len as usize)).await?;
    Ok((attr, frame))
}

/// Reads the parts into a buffer one after the other. Returns `false` if one of them is short.
async fn read_parts(file: &CallTarget, parts: List<'_, FilePart>, lease: &Lease) -> Result<bool> {
    let (export, mut start) = (&file.export, 0);
    let opening = export.openings.for_reading(file.node.id).await?;
    for part in parts {
        let end = start + part.count as usize;
        let reading =
            read_whole(&export.file_system, &file.cx, opening.file(), part.offset, lease.sink(start..end));
        if reading.resolve().await?.count != part.count as usize {
            return Ok(false);
        }
        start = end;
    }
    Ok(true)
}

/// Executes UNPACK.
pub(crate) async fn unpack(caller: &Caller<'_>, args: UnpackArgs<'_>) -> UnpackReply {
    let written = caller.change(args.file, async |file| {
        let lease = unpacked(caller, file, args).await?;
        let data = lease.as_ref().map(|lease| lease.source(0..args.count as usize));
        write_to(file, args.offset, args.stable, data.as_ref()).await
    });
    written.await
}

/// Decompresses a frame. Returns `None` unless its data has exactly the expected length, within the limits.
async fn unpacked(caller: &Caller<'_>, target: &CallTarget, args: UnpackArgs<'_>) -> Result<Option<Lease>> {
    let count_max = COMPRESSED_BYTES_MAX.min(caller.transfer_max());
    let Some(frame) = data_of(caller, args.frame, u32::MAX).filter(|_| (1..=count_max).contains(&args.count))
    else {
        return Ok(None);
    };
    let lease = caller.buffers.take(args.count as usize).ok_or(Failure(Status::Jukebox))?;
    let into = lease.sink(0..args.count as usize);
    let is_whole = caller.packer().unpack(&target.cx, frame, into).await?;
    Ok(is_whole.then_some(lease))
}
