//! How far the kernel reads ahead of a program.
//!
//! In INIT the kernel takes at most what it does anyway, 128 KiB. Where each answer comes from far away that is little: root
//! can ask for more, in sysfs.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Sets it for what is mounted at `path`, whose INIT is answered: with the answer the kernel sets its own.
///
/// # Errors
/// The mount is not there, or sysfs is not, or only root may.
pub(super) fn set(path: &Path, bytes: u32) -> io::Result<()> {
    let table = fs::read("/proc/self/mountinfo")?;
    let device = device_of(&table, path).ok_or(io::ErrorKind::NotFound)?;
    fs::write(format!("/sys/class/bdi/{device}/read_ahead_kb"), (bytes >> 10).to_string())
}

/// The device number, as `MAJOR:MINOR`, of what is mounted at a path, on top (proc_pid_mountinfo(5)). No file system is asked that
/// could keep us waiting.
fn device_of<'t>(table: &'t [u8], path: &Path) -> Option<&'t str> {
    let point = escaped(path.as_os_str().as_bytes());
    let lines = table.split(|&byte| byte == b'\n');
    let mut devices = lines.filter_map(|line| {
        let mut fields = line.split(|&byte| byte == b' ').skip(2);
        let device = fields.next()?;
        (fields.nth(1)? == point).then_some(device)
    });
    devices.next_back().and_then(|device| std::str::from_utf8(device).ok())
}

/// As the kernel writes paths in its tables.
fn escaped(path: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(path.len());
    for &byte in path {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => text.extend(format!("\\{byte:03o}").bytes()),
            _ => text.push(byte),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topmost_mount_of_a_path_is_found() {
        let table =
            b"36 35 0:44 / /mnt rw - fuse.tombolo x rw\n37 35 0:45 / /a\\040b rw - fuse.tombolo y rw\n\
            38 36 0:46 / /mnt rw - fuse.tombolo z rw\n39 36 0:47 / /mnt/sub rw - fuse.tombolo z rw\n";
        assert_eq!(device_of(table, Path::new("/mnt")), Some("0:46"));
        assert_eq!(device_of(table, Path::new("/a b")), Some("0:45"));
        assert_eq!(device_of(table, Path::new("/")), None);
    }
}
