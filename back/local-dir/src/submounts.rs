//! Mounts inside the export that no look-up has entered yet: a handle from before a restart may lead to them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use tombolo_core::{Error, Result};
use tombolo_sys::mountinfo;
use tombolo_sys::open::open_place;
use tombolo_sys::stat::{Stat, stat};

use crate::state::ExportState;

use crate::options::Submounts;

impl ExportState {
    /// Returns the index of the mount that `location` lies on. Registers the mount if it is new, and has it
    /// watched if the host is.
    pub(crate) fn register_mount_of(&self, location: BorrowedFd<'_>, stat: &Stat) -> Result<u32> {
        let is_known = self.mounts.index_of(stat).is_some();
        let index = self.mounts.register(&self.own, location, stat)?;
        if !is_known {
            self.host_watch.joined(self, &*self.mounts.mount(index)?);
        }
        Ok(index)
    }

    /// Registers all mounts inside the export, waiting for remote file systems. Returns `false` without a
    /// search if mounts are hidden, or if the last search began less than a second ago.
    pub(crate) fn register_submounts(&self) -> bool {
        if self.options.submounts == Submounts::Hide || !self.last_mount_scan.is_due() {
            return false;
        }
        if let Err(error) = self.register_all() {
            tracing::debug!(%error, "cannot list the mounts inside the export");
        }
        true
    }

    /// Returns the lines of `mountinfo` for the mounts inside the export. They change with every mount and
    /// unmount.
    pub(crate) fn submount_lines(&self) -> Result<Vec<Vec<u8>>> {
        let root = self.own.path(self.root.fd())?;
        let inside = |line: &Vec<u8>| {
            mountinfo::point(line).is_some_and(|point| point != root && is_beneath(&point, &root))
        };
        Ok(mountinfo::lines().map_err(Error::io)?.into_iter().filter(inside).collect())
    }

    fn register_all(&self) -> Result<()> {
        let root = self.own.path(self.root.fd())?;
        for point in self.submount_lines()?.iter().filter_map(|line| mountinfo::point(line)) {
            let steps = point.get(root.len()..).unwrap_or_default();
            // An unreachable mount must not prevent the others.
            let registered = self.walk(steps).and_then(|location| {
                let stat = stat(location.as_fd())?;
                self.register_mount_of(location.as_fd(), &stat)
            });
            if let Err(error) = registered {
                tracing::debug!(%error, "cannot enter a mount inside the export");
            }
        }
        Ok(())
    }

    /// Walks from the root, never following a symbolic link.
    fn walk(&self, steps: &[u8]) -> Result<OwnedFd> {
        let mut at = self.root.fd().try_clone_to_owned().map_err(Error::io)?;
        for step in steps.split(|&byte| byte == b'/').filter(|step| !step.is_empty()) {
            at = open_place(at.as_fd(), step)?;
        }
        Ok(at)
    }
}

/// Returns `true` if `path` is `root` or beneath it; both are absolute.
pub(crate) fn is_beneath(path: &[u8], root: &[u8]) -> bool {
    path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/") || root == b"/")
}
