//! REMOVE, RMDIR, RENAME (RFC 1813 §3.3.12 to §3.3.14).

use std::sync::Arc;

use tombolo_core::fs::{Entry, FileType, Name, RenameFlags, Renamed};
use tombolo_core::{Ctx, Error};
use tombolo_wire_nfs3::args::{DirOpArgs, RenameArgs};
use tombolo_wire_nfs3::results::{RemoveReply, RenameReply, RenameWcc};
use tombolo_wire_nfs3::{Reply, WccData};

use crate::caller::{CallTarget, Caller};
use crate::failure::{Failure, Result};
use crate::nodes::NodeGuard;

/// Executes REMOVE (RFC 1813 §3.3.12).
pub(crate) async fn remove(caller: &Caller<'_>, args: DirOpArgs<'_>) -> RemoveReply {
    remove_name(caller, args, false).await
}

/// Executes RMDIR (§3.3.13).
pub(crate) async fn rmdir(caller: &Caller<'_>, args: DirOpArgs<'_>) -> RemoveReply {
    remove_name(caller, args, true).await
}

async fn remove_name(caller: &Caller<'_>, args: DirOpArgs<'_>, is_directory: bool) -> RemoveReply {
    let removed = caller.change(args.dir, async |dir| {
        let (name, file_system) = (Name::new(args.name)?, &dir.export.file_system);
        let (victim, cx) = look_up_victim(dir, name).await;
        let removal = match is_directory {
            true => file_system.rmdir(&cx, dir.node.id, name),
            false => file_system.unlink(&cx, dir.node.id, name),
        };
        let change = removal.resolve().await?;
        drop_victim(dir, victim).await;
        dir.export.settle(&dir.node).await?;
        Ok(dir.wcc(&change).await)
    });
    removed.await
}

/// Executes RENAME (§3.3.14).
pub(crate) async fn rename(caller: &Caller<'_>, args: RenameArgs<'_>) -> RenameReply {
    let (from, to) = match (caller.target(args.from.dir).await, caller.target(args.to.dir).await) {
        (Ok(from), Ok(to)) => (from, to),
        (Err(Failure(status)), _) | (_, Err(Failure(status))) => {
            return Reply::Failed(status, RenameWcc { from_dir: WccData::NONE, to_dir: WccData::NONE });
        }
    };
    match rename_between(&from, args.from.name, &to, args.to.name).await {
        Ok(renamed) => Reply::Ok(RenameWcc {
            from_dir: from.wcc(&renamed.from_dir).await,
            to_dir: to.wcc(&renamed.to_dir).await,
        }),
        Err(failure) => {
            let (status, from_dir) = from.change_failed(failure).await;
            let (status, to_dir) = to.change_failed(Failure(status)).await;
            Reply::Failed(status, RenameWcc { from_dir, to_dir })
        }
    }
}

async fn rename_between(from: &CallTarget, old: &[u8], to: &CallTarget, new: &[u8]) -> Result<Renamed> {
    if !from.shares_export_with(to) {
        return Err(Failure(tombolo_wire_nfs3::Status::XDev));
    }
    let (old, new) = (Name::new(old)?, Name::new(new)?);
    let export = &from.export;
    let (victim, _) = look_up_victim(to, new).await;
    let flags = RenameFlags::empty();
    let renamed =
        export.file_system.rename(&from.cx, from.node.id, old, to.node.id, new, flags).resolve().await?;
    drop_victim(to, victim).await;
    export.settle(&to.node).await?;
    if from.node.id != to.node.id {
        export.settle(&from.node).await?;
    }
    Ok(renamed)
}

/// A node that is about to lose a name.
struct Victim {
    guard: NodeGuard,
    /// `true` if the removed name is the file's last.
    is_last: bool,
}

/// Looks up a name before it is removed, and closes the node's openings without unstable data if the name is
/// the last one. Returns the node, if an opening or the node is cached, since either keeps the space of a
/// removed file allocated; and the context for the removal, with the attributes found.
async fn look_up_victim(dir: &CallTarget, name: Name<'_>) -> (Option<Victim>, Ctx) {
    let (export, mut cx) = (&dir.export, dir.cx.clone());
    let Ok(Some(Entry { node, attr })) = dir.child(name).await else { return (None, cx) };
    let guard = NodeGuard::new(&export.file_system, export.session, node);
    let is_last = attr.nlink <= 1 || attr.file_type == FileType::Directory;
    cx.found = Some(Arc::new(attr));
    let is_cached = export.openings.holds(node) || export.nodes.holds(node);
    if is_last {
        // A back end that is a client of another server would rename an open file instead (silly rename).
        export.openings.close_stable(node);
    }
    (is_cached.then_some(Victim { guard, is_last }), cx)
}

/// Drops a node if it has lost its last name, so that its space is freed at once.
async fn drop_victim(dir: &CallTarget, victim: Option<Victim>) {
    let Some(Victim { guard, is_last }) = victim else { return };
    let (export, node) = (&dir.export, guard.id());
    // Without unstable data, dropping the node is harmless even if the file got a new name meanwhile: the
    // next call looks it up and opens it again.
    if is_last && export.openings.close_stable(node) {
        export.nodes.remove(node);
        return;
    }
    let opening = export.openings.of_file(node);
    let file = opening.as_ref().map(|opening| opening.file());
    match export.file_system.getattr(&export.own_ctx(), node, file).resolve().await {
        Ok(attr) if attr.nlink == 0 => {}
        Err(Error::Stale | Error::NotFound) => {}
        // The node has other names, or that is unknown: its data must still be made stable.
        _ => return,
    }
    export.openings.discard(node);
    export.nodes.remove(node);
}
