//! DIGESTS of the side program: a file's version and the digests of its chunks (`docs/protocols/side.md`).

use tombolo_core::fs::{Attr, WeakAttr, read_whole};
use tombolo_wire_nfs3::Status;
use tombolo_wire_nfs3::attr::fattr3;
use tombolo_wire_nfs3::side::{CHUNK_BYTES, DIGESTED_BYTES_MAX, DigestsArgs, DigestsOk, DigestsReply};
use tombolo_wire_xdr::Encoder;

use crate::caller::{CallTarget, Caller};
use crate::failure::{Failure, Result, write_failure};

/// Maximum number of attempts for a file that keeps changing.
const TRIES_MAX: u32 = 3;

/// Executes DIGESTS, from the cache if it has all requested chunks of the file's version.
pub(crate) async fn digests(caller: &Caller<'_>, args: DigestsArgs<'_>, results: &mut Encoder<'_>) {
    let written = caller.on(args.file, async |file| {
        let (attr, digests) = digested(caller, file, args).await?;
        results.value(&DigestsReply::Ok(DigestsOk { attributes: fattr3(&attr), digests: &digests }));
        Ok(())
    });
    write_failure(&written.await, results);
}

/// Returns a file's attributes and the digests of its chunks. The attributes are the same before and after
/// the read, so that the digests are of that version.
async fn digested(caller: &Caller<'_>, file: &CallTarget, args: DigestsArgs<'_>) -> Result<(Attr, Vec<u8>)> {
    if !args.offset.is_multiple_of(CHUNK_BYTES) || args.count > DIGESTED_BYTES_MAX {
        return Err(Failure(Status::Inval));
    }
    let (export, digests) = (&file.export, caller.digests());
    let mut attr = file.file_attr().await?;
    for _ in 0..TRIES_MAX {
        export.permissions.check_read(&file.cx, file.node.id, &attr).await?;
        let version = WeakAttr::from(&attr);
        let wanted = u64::from(args.count).next_multiple_of(CHUNK_BYTES);
        let len = wanted.min(attr.size.saturating_sub(args.offset)) as usize;
        if len == 0 {
            return Ok((attr, Vec::new()));
        }
        let (first, count) = (args.offset / CHUNK_BYTES, (len as u64).div_ceil(CHUNK_BYTES));
        if let Some(cached) = digests.cached(file, &version, first, count) {
            return Ok((attr, cached));
        }
        let lease = caller.buffers.take(len).ok_or(Failure(Status::Jukebox))?;
        let opening = export.openings.for_reading(file.node.id).await?;
        let reading =
            read_whole(&export.file_system, &file.cx, opening.file(), args.offset, lease.sink(0..len));
        let read = reading.resolve().await?.count;
        let made = digests.make(&file.cx, lease.source(0..len)).await?;
        attr = file.file_attr().await?;
        if read == len && WeakAttr::from(&attr) == version {
            digests.insert(file, &attr, first, &made);
            return Ok((attr, made));
        }
    }
    Err(Failure(Status::Jukebox))
}
