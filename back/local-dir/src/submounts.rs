//! Mounts inside the export that no lookup has entered yet: a handle from before a restart may lead to them.

use std::os::fd::{AsFd, OwnedFd};

use tombolo_core::{Error, Result};
use tombolo_sys::open::open_place;
use tombolo_sys::stat::stat;

use crate::state::Shared;

use crate::options::Submounts;

impl Shared {
    /// Learns about all mounts inside the export; whether it looked. It waits for file systems that are far away.
    pub(crate) fn meet_submounts(&self) -> bool {
        if self.options.submounts == Submounts::Hide || !self.last_look.is_due() {
            return false;
        }
        if let Err(error) = self.meet_all() {
            tracing::debug!(%error, "the mounts inside the export could not be listed");
        }
        true
    }

    /// What the kernel says of the mounts inside the export: another text when one was made or taken away.
    pub(crate) fn submount_lines(&self) -> Result<Vec<Vec<u8>>> {
        let root = self.own.path(self.root.fd())?;
        let list = std::fs::read("/proc/self/mountinfo").map_err(Error::io)?;
        let inside =
            |line: &&[u8]| mount_point(line).is_some_and(|point| point != root && is_beneath(&point, &root));
        Ok(list.split(|&byte| byte == b'\n').filter(inside).map(<[u8]>::to_vec).collect())
    }

    fn meet_all(&self) -> Result<()> {
        let root = self.own.path(self.root.fd())?;
        for point in self.submount_lines()?.iter().filter_map(|line| mount_point(line)) {
            let steps = point.get(root.len()..).unwrap_or_default();
            // One that cannot be reached does not stand in the way of the others.
            let met = self.walk(steps).and_then(|location| {
                let stat = stat(location.as_fd())?;
                self.mounts.meet(&self.own, location.as_fd(), &stat)
            });
            if let Err(error) = met {
                tracing::debug!(%error, "a mount inside the export cannot be entered");
            }
        }
        Ok(())
    }

    /// Walks from the root, never following a link.
    fn walk(&self, steps: &[u8]) -> Result<OwnedFd> {
        let mut at = self.root.fd().try_clone_to_owned().map_err(Error::io)?;
        for step in steps.split(|&byte| byte == b'/').filter(|step| !step.is_empty()) {
            at = open_place(at.as_fd(), step)?;
        }
        Ok(at)
    }
}

/// Whether one absolute path leads to the other or beneath it.
pub(crate) fn is_beneath(path: &[u8], root: &[u8]) -> bool {
    path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/") || root == b"/")
}

/// Where a line of `/proc/self/mountinfo` says that something is mounted (proc(5): the fifth field, in which blanks and
/// backslashes are written as three octal digits).
fn mount_point(line: &[u8]) -> Option<Vec<u8>> {
    let field = line.split(|&byte| byte == b' ').nth(4)?;
    let mut point = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let escaped = (byte == b'\\').then(|| after.split_first_chunk::<3>()).flatten();
        if let Some((digits, after)) = escaped {
            let value = digits.iter().try_fold(0_u32, |value, digit| {
                (b'0'..=b'7').contains(digit).then(|| value * 8 + u32::from(digit - b'0'))
            });
            point.push(u8::try_from(value?).ok()?);
            rest = after;
        } else {
            point.push(byte);
            rest = after;
        }
    }
    Some(point)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_is_read_with_its_blanks() {
        let line = b"36 35 98:0 /mnt1 /mnt/a\\040b\\134c rw,noatime master:1 - ext3 /dev/root rw";
        assert_eq!(mount_point(line).as_deref(), Some(&b"/mnt/a b\\c"[..]));
        assert_eq!(mount_point(b"36 35"), None);
        assert_eq!(mount_point(b"1 2 3 4 /\\999 x"), None);
    }
}
