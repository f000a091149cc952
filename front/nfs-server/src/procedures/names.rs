//! LOOKUP and READLINK (RFC 1813 §3.3.3, §3.3.5).

use std::sync::Arc;

use tombolo_core::fs::{Attr, FileType, Name, NodeId};
use tombolo_wire_nfs3::args::DirOpArgs;
use tombolo_wire_nfs3::attr::fattr3;
use tombolo_wire_nfs3::results::{LookupOk, LookupReply, ReadlinkOk, ReadlinkReply};
use tombolo_wire_nfs3::{FileHandle, Status};
use tombolo_wire_xdr::Encoder;

use crate::caller::{CallTarget, Caller};
use crate::failure::{Failure, Result, write_failure};
use crate::nodes::Node;

/// Executes LOOKUP (RFC 1813 §3.3.3).
pub(crate) async fn lookup(caller: &Caller<'_>, args: DirOpArgs<'_>, results: &mut Encoder<'_>) {
    let written = caller.on(args.dir, async |dir| {
        let (node, attr) = find(dir, args.name).await?;
        let (attributes, dir_attributes) = (Some(fattr3(&attr)), dir.post_op().await);
        let object = node.wire_handle();
        results.value(&LookupReply::Ok(LookupOk { object, attributes, dir_attributes }));
        Ok(())
    });
    write_failure(&written.await, results);
}

/// Looks up a name, including `.` and `..`.
async fn find(dir: &CallTarget, name: &[u8]) -> Result<(Arc<Node>, Attr)> {
    let export = &dir.export;
    let is_root = dir.node.id == NodeId::ROOT;
    if name == b"." || (name == b".." && is_root) {
        // An export's root has no parent.
        let attr = dir.directory_attr().await?;
        return Ok((dir.node.clone(), attr));
    }
    let entry = if name == b".." {
        let handles = export.file_system.persistent_handles().ok_or(Failure(Status::NotSupp))?;
        handles.parent(&dir.cx, dir.node.id).resolve().await?
    } else {
        export.file_system.lookup(&dir.cx, dir.node.id, Name::new(name)?).resolve().await?
    };
    Ok((export.adopt(entry.node).await?, entry.attr))
}

/// Executes READLINK (§3.3.5).
pub(crate) async fn readlink(caller: &Caller<'_>, handle: FileHandle<'_>, results: &mut Encoder<'_>) {
    let written = caller.on(handle, async |link| {
        let attr = link.attr().await?;
        if attr.file_type != FileType::Symlink {
            return Err(Failure(Status::Inval));
        }
        let target = link.export.file_system.readlink(&link.cx, link.node.id).resolve().await?;
        results.value(&ReadlinkReply::Ok(ReadlinkOk { attributes: Some(fattr3(&attr)), target: &target }));
        Ok(())
    });
    write_failure(&written.await, results);
}
