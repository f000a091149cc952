//! Permissions of a new file with the contents of others, for copies, overlays and merged overlays of disks.

use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use tombolo_core::fs::{Attr, Mode};
use tombolo_sys::xattr;

use super::disk::DiskSource;
use crate::commands::files::open_path::attr_of;
use crate::failure::{Failure, OrCannot};

/// Extended attribute of access lists (acl(5)).
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";

/// Permissions of a new file with the content of a disk, and the group that the group's bits are meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    mode: u32,
    /// Group of all source files; `None` if they have several.
    gid: Option<u32>,
}

impl Access {
    /// Access for the owner alone.
    pub const PRIVATE: Self = Self { mode: 0o600, gid: None };

    /// Returns the permissions for a copy or an overlay of this disk: those common to all its files, minus
    /// the umask; the owner can always read and write. Permissions of an NBD server's disk are unknown, so
    /// its copies are private.
    pub fn of(disk: &DiskSource, umask: Mode) -> Result<Self, Failure> {
        let mut found = Vec::new();
        for layer in disk.layers()? {
            if let Some(location) = layer.source.location() {
                let Attr { mode, gid, .. } = attr_of(location)?;
                found.push(Self { mode: mode.bits(), gid: Some(gid) });
            } else if let DiskSource::Nbd(_) = layer.source {
                found.push(Self::PRIVATE);
            }
            for path in layer.files() {
                let of_file = Self::of_file(path);
                found.push(of_file.or_cannot(format_args!("get attributes of {}", path.display()))?);
            }
        }
        let mode = found.iter().fold(0o666 & !umask.bits(), |mode, access| mode & access.mode);
        let gid = found.first().and_then(|first| first.gid);
        let is_one_group = found.iter().all(|access| access.gid == gid);
        Ok(Self { mode: mode | Self::PRIVATE.mode, gid: gid.filter(|_| is_one_group) })
    }

    /// Returns the permissions for a file that replaces another.
    pub fn like(replaced: &Metadata) -> Self {
        Self { mode: replaced.mode() & 0o7777, gid: Some(replaced.gid()) }
    }

    fn of_file(path: &Path) -> io::Result<Self> {
        let it = fs::metadata(path)?;
        let (mode, gid) = (it.mode() & 0o777, Some(it.gid()));
        // With an access list, the group bits are the mask: the group itself may have less access.
        let has_list = it.is_file()
            && xattr::value(File::open(path)?.as_fd(), ACCESS_LIST, &mut []).is_ok_and(|len| len > 0);
        Ok(if has_list { Self { mode: of_others(mode), gid } } else { Self { mode, gid } })
    }

    /// Returns the mode for a file of this group. Members of another group than the sources' have only the
    /// access of others.
    pub fn in_group(self, gid: u32) -> Mode {
        Mode::new(if self.gid == Some(gid) { self.mode } else { of_others(self.mode) })
    }

    /// Sets the permissions of a new file, according to the group that it was created with.
    pub fn give(self, file: &File) -> io::Result<()> {
        let mode = self.in_group(file.metadata()?.gid());
        file.set_permissions(Permissions::from_mode(mode.bits()))
    }
}

/// Restricts the group's bits of a mode to those that others have too.
fn of_others(mode: u32) -> u32 {
    mode & (0o707 | mode << 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_group_gets_only_access_of_others() {
        let access = Access { mode: 0o664, gid: Some(7) };
        assert_eq!((access.in_group(7).bits(), access.in_group(8).bits()), (0o664, 0o644));
        assert_eq!(Access { mode: 0o660, gid: None }.in_group(7).bits(), 0o600);
        assert_eq!(Access::PRIVATE.in_group(7).bits(), 0o600);
    }
}
