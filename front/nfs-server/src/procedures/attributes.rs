//! GETATTR, SETATTR, ACCESS (RFC 1813 §3.3.1, §3.3.2, §3.3.4).

use tombolo_core::fs::{AccessMask, Attr, Change, FileType, SetAttr, SetTime};
use tombolo_wire_nfs3::args::{AccessArgs, AccessBits, SetattrArgs};
use tombolo_wire_nfs3::attr::{fattr3, set_attr};
use tombolo_wire_nfs3::results::{AccessOk, AccessReply, GetattrReply, SetattrReply};
use tombolo_wire_nfs3::{FileHandle, Status};

use crate::caller::{CallTarget, Caller};
use crate::failure::{Failure, Result, reply};

/// Executes GETATTR (RFC 1813 §3.3.1).
pub(crate) async fn getattr(caller: &Caller<'_>, handle: FileHandle<'_>) -> GetattrReply {
    let attributes = async { Ok(fattr3(&caller.target(handle).await?.attr().await?)) };
    reply(attributes.await, ())
}

/// Executes SETATTR (§3.3.2): sets the size through an opening, and makes the changes stable before the reply
/// if the export's durability requires it.
pub(crate) async fn setattr(caller: &Caller<'_>, args: SetattrArgs<'_>) -> SetattrReply {
    let changed = caller.change(args.object, async |target| {
        let change = change(target, &set_attr(&args.attributes, args.guard)?).await?;
        Ok(target.wcc(&change).await)
    });
    changed.await
}

/// Changes attributes for the caller, and makes the change stable if the export's durability requires it.
pub(super) async fn change(target: &CallTarget, set: &SetAttr) -> Result<Change> {
    let attr = target.attr().await?;
    let (_, change) = match set.size {
        Some(_) => truncate(target, &attr, set).await?,
        None => target.export.file_system.setattr(&target.cx, target.node.id, None, set).resolve().await?,
    };
    target.export.settle_attributes(&target.node, attr.file_type).await?;
    Ok(change)
}

/// Truncates through an opening: the client may have opened the file before its mode changed (RFC 1813 §4.4).
async fn truncate(target: &CallTarget, attr: &Attr, set: &SetAttr) -> Result<(Attr, Change)> {
    let export = &target.export;
    match attr.file_type {
        FileType::Regular => {}
        FileType::Directory => return Err(Failure(Status::IsDir)),
        _ => return Err(Failure(Status::Inval)),
    }
    export.permissions.check_write(&target.cx, target.node.id, attr).await?;
    let opening = export.openings.for_writing(target.node.id).await?;
    // The truncation itself sets mtime to now, which write permission allows; a separate change to now may be
    // reserved for the owner. Linux's client sends both for every O_TRUNC.
    let mtime = set.mtime.filter(|&time| time != SetTime::Now);
    let set = SetAttr { kill_privileges: target.cx.identity.uid != 0, mtime, ..*set };
    Ok(export.file_system.setattr(&target.cx, target.node.id, Some(opening.file()), &set).resolve().await?)
}

/// Executes ACCESS (§3.3.4), whose reply the client may cache while the ctime is unchanged.
pub(crate) async fn access(caller: &Caller<'_>, args: AccessArgs<'_>) -> AccessReply {
    let checked = caller.on(args.object, async |target| {
        let (attr, access) = allowed(target, args.access).await?;
        Ok(AccessOk { attributes: Some(fattr3(&attr)), access })
    });
    checked.await
}

pub(super) async fn allowed(target: &CallTarget, requested: AccessBits) -> Result<(Attr, AccessBits)> {
    let attr = target.attr().await?;
    let directory = attr.file_type == FileType::Directory;
    let mut wanted = AccessMask::empty();
    for bit in requested.iter() {
        wanted |= needs(bit, directory).unwrap_or_default();
    }
    let permissions = &target.export.permissions;
    let may = permissions.allowed(&target.cx, target.node.id, &attr, wanted).await?;
    let granted =
        requested.iter().filter(|&bit| needs(bit, directory).is_some_and(|mask| may.contains(mask)));
    Ok((attr, granted.collect()))
}

/// Returns the permissions that an ACCESS bit needs; `None` if it does not apply: only directories have
/// entries to look up and delete, only files are executed.
fn needs(bit: AccessBits, directory: bool) -> Option<AccessMask> {
    match (bit, directory) {
        (AccessBits::READ, _) => Some(AccessMask::READ),
        (AccessBits::LOOKUP, true) => Some(AccessMask::EXECUTE),
        (AccessBits::MODIFY | AccessBits::EXTEND | AccessBits::DELETE, true) => {
            Some(AccessMask::WRITE | AccessMask::EXECUTE)
        }
        (AccessBits::MODIFY | AccessBits::EXTEND, false) => Some(AccessMask::WRITE),
        (AccessBits::EXECUTE, false) => Some(AccessMask::EXECUTE),
        _ => None,
    }
}
