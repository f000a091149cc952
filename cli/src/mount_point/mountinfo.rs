//! What is mounted where: /proc/self/mountinfo (proc_pid_mountinfo(5)).

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    pub point: PathBuf,
    /// The file system's type, as in `fuse.tombolo`.
    pub kind: String,
    /// Its own flags, as in `ro,nosuid,nodev`.
    pub flags: String,
}

impl MountEntry {
    pub fn has(&self, flag: &str) -> bool {
        self.flags.split(',').any(|own| own == flag)
    }
}

/// The mounts of the namespace in which it was opened, also once the process has left that (mount_namespaces(7)).
#[derive(Debug)]
pub struct MountTable(File);

impl MountTable {
    pub fn open() -> io::Result<Self> {
        File::open("/proc/self/mountinfo").map(Self)
    }

    /// What is mounted now at exactly this absolute path: the topmost, if there are several.
    pub fn at(&self, point: &Path) -> io::Result<Option<MountEntry>> {
        let (mut file, mut table) = (&self.0, Vec::new());
        file.rewind()?;
        file.read_to_end(&mut table)?;
        Ok(entries(&table).filter(|entry| entry.point == point).last())
    }
}

/// What is mounted at exactly this absolute path: the topmost, if there are several.
pub fn mounted_at(point: &Path) -> io::Result<Option<MountEntry>> {
    MountTable::open()?.at(point)
}

fn entries(table: &[u8]) -> impl Iterator<Item = MountEntry> {
    table.split(|&byte| byte == b'\n').filter_map(entry)
}

/// `ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [FIELD]… - TYPE SOURCE SUPER-OPTIONS`
fn entry(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&byte| byte == b' ');
    let point = fields.nth(4)?;
    let flags = String::from_utf8_lossy(fields.next()?).into_owned();
    let kind = fields.by_ref().skip_while(|field| *field != b"-").nth(1)?;
    let kind = String::from_utf8_lossy(kind).into_owned();
    Some(MountEntry { point: OsString::from_vec(unescaped(point)).into(), kind, flags })
}

/// Blanks, newlines and backslashes are written as a backslash and three octal digits.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let code = after.first_chunk().filter(|_| first == b'\\').and_then(octal);
        plain.push(code.unwrap_or(first));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    plain
}

fn octal(digits: &[u8; 3]) -> Option<u8> {
    let text = std::str::from_utf8(digits).ok()?;
    u8::from_str_radix(text, 8).ok()
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
