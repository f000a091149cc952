//! `-o remount`: changes options of a mount in use.

use std::path::Path;

use tombolo_sys::fuse_dev::{self, Flags};

use crate::commands::umount::server_of;
use crate::failure::{Failure, OrCannot, Outcome};
use crate::location::NfsOption;
use crate::service::status::Status;

use super::options::MountOptions;
use crate::mount_point::{KIND, MountEntry, existing};

/// Sets or clears ro, nodev, nosuid and noexec of a mount, and sets its in-flight limit. Other options are
/// not changed.
pub fn remount(mountpoint: &Path, options: &MountOptions) -> Outcome {
    let remounting = format!("remount {}", mountpoint.display());
    let (point, entry) = existing(mountpoint, &remounting)?;
    if entry.kind != KIND {
        let other = format!("a file system of type {} is mounted there", entry.kind);
        return Err(Failure::cannot(&remounting, other));
    }
    let flags = flags(&entry, options);
    let server = server_of(&point);
    let refuses = |status: &Status| status.exports.iter().any(|export| export.read_only);
    if !flags.contains(Flags::RDONLY) && server.as_ref().is_some_and(|(_, status)| refuses(status)) {
        let failure =
            Failure::cannot(&remounting, "it was mounted read-only, and its server refuses changes");
        return Err(failure.remedy("unmount it and mount it again"));
    }
    fuse_dev::remount(&point, flags).map_err(|errno| {
        Failure::cannot(&remounting, &std::io::Error::from(errno))
            .remedy_if(errno == tombolo_sys::Errno::PERM, "only root may remount")
    })?;
    let limit = options.nfs.iter().zip(options.nfs.words());
    let limit = limit.filter(|(option, _)| matches!(option, NfsOption::InFlight(_))).last();
    if let (Some((_, limit)), Some((mut client, _))) = (limit, server) {
        client.set(limit).or_cannot(&remounting)?;
    }
    Ok(())
}

/// Returns the mount's flags, overridden by the options.
fn flags(entry: &MountEntry, options: &MountOptions) -> Flags {
    let mut flags = Flags::empty();
    flags.set(Flags::NODEV, options.devices.map_or(entry.has("nodev"), |devices| !devices));
    flags.set(Flags::NOSUID, options.set_id.map_or(entry.has("nosuid"), |set_id| !set_id));
    flags.set(Flags::NOEXEC, options.no_exec.unwrap_or(entry.has("noexec")));
    flags.set(Flags::RDONLY, options.read_only.unwrap_or(entry.has("ro")));
    flags
}
