//! Permissions of new files that hold what others hold.

use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use tombolo_core::fs::{Attr, Mode};
use tombolo_sys::xattr;

use super::disk::DiskSource;
use crate::commands::files::open_path::attr_of;
use crate::failure::Failure;

/// The attribute that an access list of a file is kept in (acl(5)).
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";

/// The permissions of a new file with the content of a disk: what each file of it permits that the disk lies
/// in, and the umask does not take away. Its owner may always read and write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    mode: u32,
    /// The group of all of those files, where it is one.
    gid: Option<u32>,
}

impl Access {
    /// For the owner alone.
    pub const PRIVATE: Self = Self { mode: 0o600, gid: None };

    /// For a copy of this disk, or an overlay of it. Nothing is known of what an NBD server has, which is the
    /// owner's alone.
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
                found.push(of_file.map_err(|error| {
                    Failure::cannot(format_args!("get attributes of {}", path.display()), &error)
                })?);
            }
        }
        let mode = found.iter().fold(0o666 & !umask.bits(), |mode, access| mode & access.mode);
        let gid = found.first().and_then(|first| first.gid);
        let is_one_group = found.iter().all(|access| access.gid == gid);
        Ok(Self { mode: mode | Self::PRIVATE.mode, gid: gid.filter(|_| is_one_group) })
    }

    /// For a file that replaces another.
    pub fn like(replaced: &Metadata) -> Self {
        Self { mode: replaced.mode() & 0o7777, gid: Some(replaced.gid()) }
    }

    fn of_file(path: &Path) -> io::Result<Self> {
        let it = fs::metadata(path)?;
        let (mode, gid) = (it.mode() & 0o777, Some(it.gid()));
        // With an access list the group's bits are those of the mask: what the group may is less.
        let has_list = it.is_file()
            && xattr::value(File::open(path)?.as_fd(), ACCESS_LIST, &mut []).is_ok_and(|len| len > 0);
        Ok(if has_list { Self { mode: of_others(mode), gid } } else { Self { mode, gid } })
    }

    /// Those of a file of this group. The members of another group than the sources' are among the others
    /// there.
    pub fn in_group(self, gid: u32) -> Mode {
        Mode::new(if self.gid == Some(gid) { self.mode } else { of_others(self.mode) })
    }

    /// Gives them to a new file.
    pub fn give(self, file: &File) -> io::Result<()> {
        let mode = self.in_group(file.metadata()?.gid());
        file.set_permissions(Permissions::from_mode(mode.bits()))
    }
}

/// The group may no more than others.
fn of_others(mode: u32) -> u32 {
    mode & (0o707 | mode << 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_group_may_no_more_than_others() {
        let access = Access { mode: 0o664, gid: Some(7) };
        assert_eq!((access.in_group(7).bits(), access.in_group(8).bits()), (0o664, 0o644));
        assert_eq!(Access { mode: 0o660, gid: None }.in_group(7).bits(), 0o600);
        assert_eq!(Access::PRIVATE.in_group(7).bits(), 0o600);
    }
}
