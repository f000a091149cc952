//! How far the kernel reads ahead of a program.
//!
//! In INIT the kernel takes at most what it does anyway, 128 KiB. Where each answer comes from far away that
//! is little: root can ask for more, in sysfs.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use tombolo_sys::mountinfo;

/// Sets it for what is mounted at `path`, whose INIT is answered: with the answer the kernel sets its own.
///
/// # Errors
/// The mount is not there, or sysfs is not, or only root may.
pub(super) fn set(path: &Path, bytes: u32) -> io::Result<()> {
    let lines = mountinfo::lines()?;
    let device = device_of(&lines, path).ok_or(io::ErrorKind::NotFound)?;
    fs::write(format!("/sys/class/bdi/{device}/read_ahead_kb"), (bytes >> 10).to_string())
}

/// The device of what is mounted at a path, on top.
fn device_of<'t>(lines: &'t [Vec<u8>], path: &Path) -> Option<&'t str> {
    let is_there = |line: &&Vec<u8>| mountinfo::point(line).as_deref() == Some(path.as_os_str().as_bytes());
    mountinfo::device(lines.iter().rfind(is_there)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topmost_mount_of_a_path_is_found() {
        let lines = [
            "36 35 0:44 / /mnt rw - fuse.tombolo x rw",
            "37 35 0:45 / /a\\040b rw - fuse.tombolo y rw",
            "38 36 0:46 / /mnt rw - fuse.tombolo z rw",
            "39 36 0:47 / /mnt/sub rw - fuse.tombolo z rw",
        ]
        .map(|line| line.as_bytes().to_vec());
        assert_eq!(device_of(&lines, Path::new("/mnt")), Some("0:46"));
        assert_eq!(device_of(&lines, Path::new("/a b")), Some("0:45"));
        assert_eq!(device_of(&lines, Path::new("/")), None);
    }
}
