//! FSSTAT, FSINFO, PATHCONF (RFC 1813 §3.3.18 to §3.3.20).

use tombolo_wire_nfs3::attr::{fattr3, fsstat as fsstat_ok};
use tombolo_wire_nfs3::results::{FsinfoOk, FsinfoReply, FsstatReply, PathconfOk, PathconfReply, Properties};
use tombolo_wire_nfs3::{FileHandle, NfsTime3};

use super::LISTING_PREFERRED_BYTES;
use crate::caller::Caller;

/// Preferred multiple of transfer sizes: a page.
const PAGE_BYTES: u32 = 4096;
/// Link limit reported to clients: that of ext3; newer file systems of Linux allow more. Clients do not check
/// it before LINK.
const LINK_MAX: u32 = 32_000;

/// Executes FSSTAT (RFC 1813 §3.3.18).
pub(crate) async fn fsstat(caller: &Caller<'_>, handle: FileHandle<'_>) -> FsstatReply {
    let space = caller.on(handle, async |target| {
        let attr = target.attr().await?;
        let statfs = target.export.file_system.statfs(&target.cx, target.node.id).resolve().await?;
        Ok(fsstat_ok(&statfs, Some(fattr3(&attr))))
    });
    space.await
}

/// Executes FSINFO (§3.3.19).
pub(crate) async fn fsinfo(caller: &Caller<'_>, handle: FileHandle<'_>) -> FsinfoReply {
    let info = caller.on(handle, async |target| {
        let (attr, profile) = (target.attr().await?, &target.export.profile);
        let transfer_max = caller.transfer_max();
        let mut properties = Properties::LINK | Properties::SYMLINK | Properties::HOMOGENEOUS;
        properties.set(Properties::CAN_SET_TIME, !profile.read_only);
        Ok(FsinfoOk {
            attributes: Some(fattr3(&attr)),
            read_max: transfer_max,
            read_preferred: transfer_max,
            read_multiple: PAGE_BYTES,
            write_max: transfer_max,
            write_preferred: transfer_max,
            write_multiple: PAGE_BYTES,
            readdir_preferred: LISTING_PREFERRED_BYTES.min(transfer_max),
            file_size_max: profile.file_size_max,
            time_delta: NfsTime3 { seconds: 0, nseconds: profile.time_granularity_ns },
            properties,
        })
    });
    info.await
}

/// Executes PATHCONF (§3.3.20).
pub(crate) async fn pathconf(caller: &Caller<'_>, handle: FileHandle<'_>) -> PathconfReply {
    let configuration = caller.on(handle, async |target| {
        Ok(PathconfOk {
            attributes: Some(fattr3(&target.attr().await?)),
            link_max: LINK_MAX,
            name_max: target.export.profile.name_max,
            no_trunc: true,
            chown_restricted: true,
            case_insensitive: false,
            case_preserving: true,
        })
    });
    configuration.await
}
