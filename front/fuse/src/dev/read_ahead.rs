//! The kernel's read-ahead for a mount.
//!
//! INIT can only lower the kernel's default of 128 KiB, too little for distant servers; sysfs lets root raise
//! it.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use tombolo_sys::mountinfo;

/// Sets the read-ahead of the mount at `path`. INIT must have been answered, since the kernel sets the value
/// itself when it receives the reply.
///
/// # Errors
/// The mount or sysfs is missing, or the caller is not root.
pub(super) fn set(path: &Path, bytes: u32) -> io::Result<()> {
    let lines = mountinfo::lines()?;
    let device = device_of(&lines, path).ok_or(io::ErrorKind::NotFound)?;
    fs::write(format!("/sys/class/bdi/{device}/read_ahead_kb"), (bytes >> 10).to_string())
}

/// Returns the device number of the topmost mount at a path, as `MAJOR:MINOR`; `None` if there is no mount.
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
