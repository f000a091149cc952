//! Mount table: /proc/self/mountinfo (proc_pid_mountinfo(5)).

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use tombolo_sys::mountinfo;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    pub point: PathBuf,
    /// File system type, such as `fuse.tombolo`.
    pub kind: String,
    /// Mount flags, such as `ro,nosuid,nodev`.
    pub flags: String,
}

impl MountEntry {
    pub fn has(&self, flag: &str) -> bool {
        self.flags.split(',').any(|own| own == flag)
    }
}

/// Mounts of the namespace in which the table was opened, even after the process has left it
/// (mount_namespaces(7)).
#[derive(Debug)]
pub struct MountTable(File);

impl MountTable {
    pub fn open() -> io::Result<Self> {
        File::open("/proc/self/mountinfo").map(Self)
    }

    /// Returns the topmost mount at exactly this absolute path, if there is one.
    pub fn at(&self, point: &Path) -> io::Result<Option<MountEntry>> {
        let (mut file, mut table) = (&self.0, Vec::new());
        file.rewind()?;
        file.read_to_end(&mut table)?;
        Ok(entries(&table).filter(|entry| entry.point == point).last())
    }
}

/// Returns the topmost mount at exactly this absolute path in the present mount namespace, if there is one.
pub fn mounted_at(point: &Path) -> io::Result<Option<MountEntry>> {
    MountTable::open()?.at(point)
}

fn entries(table: &[u8]) -> impl Iterator<Item = MountEntry> {
    table.split(|&byte| byte == b'\n').filter_map(entry)
}

fn entry(line: &[u8]) -> Option<MountEntry> {
    let (kind, flags) = (mountinfo::kind(line)?.to_owned(), mountinfo::options(line)?.to_owned());
    Some(MountEntry { point: OsString::from_vec(mountinfo::point(line)?).into(), kind, flags })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topmost_mount_and_odd_names_are_found() {
        let table = b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw\n\
            40 35 0:44 / /a\\040b\\134c rw,nosuid - fuse.tombolo /src rw,user_id=0\n\
            41 40 0:45 / /mnt2 rw shared:3 master:2 - fuse.tombolo x rw\nnonsense\n\n";
        let found: Vec<_> = entries(table).collect();
        assert_eq!(found.len(), 3);
        let (point, kind) = ("/a b\\c".into(), "fuse.tombolo".into());
        assert_eq!(found[1], MountEntry { point, kind, flags: "rw,nosuid".into() });
        assert!(found[1].has("nosuid") && !found[1].has("ro"));
        assert_eq!(found[2].kind, "fuse.tombolo");
    }

    #[test]
    fn root_is_a_mount() {
        assert!(mounted_at(Path::new("/")).expect("proc").is_some());
    }
}
