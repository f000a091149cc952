//! Finding names, reading links, asking for access.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use tombolo_core::fs::{AccessMask, Entry, Name, NodeId};
use tombolo_core::{Ctx, Error, Permit, Result};
use tombolo_sys::access::{self, check_access};
use tombolo_sys::open::{OpenFlags, open_cached, open_place};
use tombolo_sys::stat::{self, S_IFLNK};
use tombolo_sys::{Errno, namespace};

use crate::location::Location;
use crate::session::Session;

/// The longest target of a link, with room to see that it is longer (PATH_MAX).
const TARGET_MAX_LEN: usize = 4096;

impl Session {
    /// Finds a name in a directory. A file that is known costs one system call, another one two more.
    pub(crate) fn lookup(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Result<Entry> {
        let dir = self.location(parent)?;
        let acting = self.checked(cx)?;
        let found = stat::stat_entry(dir.fd(), name.as_bytes())?;
        self.admit(&found)?;
        if let Some(entry) = self.recognise(&found) {
            return Ok(entry);
        }
        let location = open_place(dir.fd(), name.as_bytes())?;
        drop(acting);
        self.take_in(location, self.node_permit()?, parent, name)
    }

    /// Opens a name, and makes a node of what is there; `permit` is for the node.
    pub(crate) fn meet(
        &self,
        cx: &Ctx,
        permit: Permit,
        parent: NodeId,
        dir: &Location,
        name: Name<'_>,
    ) -> Result<Entry> {
        let acting = self.checked(cx)?;
        let location = open_place(dir.fd(), name.as_bytes())?;
        drop(acting);
        self.take_in(location, permit, parent, name)
    }

    /// Makes a node of what was opened under a name.
    fn take_in(&self, location: OwnedFd, permit: Permit, parent: NodeId, name: Name<'_>) -> Result<Entry> {
        let stat = stat::stat(location.as_fd())?;
        self.admit(&stat)?;
        self.adopt(location, true, &stat, permit, parent, Some(name)).map(|(entry, _)| entry)
    }

    /// Finds a name as far as the kernel can tell without waiting; `None` when it cannot.
    pub(crate) fn lookup_in_memory(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Option<Result<Entry>> {
        // The attributes of a far file may have to be fetched, whatever is in memory.
        if !self.is_local(parent) {
            return None;
        }
        let dir = self.location_at_hand(parent).ok()??;
        let location = {
            let _acting = self.checked(cx).ok()?;
            match open_cached(dir.fd(), name.as_bytes(), OpenFlags::PATH) {
                Ok(location) => location,
                Err(Errno::NOENT) => return Some(Err(Error::NotFound)),
                Err(_) => return None,
            }
        };
        // From here on it is in memory: it was just opened.
        Some(self.node_permit().and_then(|permit| self.take_in(location, permit, parent, name)))
    }

    pub(crate) fn read_link(&self, node: NodeId) -> Result<Vec<u8>> {
        let location = self.location(node)?;
        if location.kind() != S_IFLNK {
            return Err(Error::InvalidArgument);
        }
        let mut buffer = [MaybeUninit::uninit(); TARGET_MAX_LEN];
        Ok(namespace::link_target(location.fd(), &mut buffer)?.to_vec())
    }

    pub(crate) fn access(&self, cx: &Ctx, node: NodeId, mask: AccessMask) -> Result<()> {
        let location = self.location(node)?;
        if mask.contains(AccessMask::WRITE) {
            self.writable()?;
        }
        let bit = |flag, bit| if mask.contains(flag) { bit } else { 0 };
        let mask = bit(AccessMask::EXECUTE, access::EXECUTE)
            | bit(AccessMask::WRITE, access::WRITE)
            | bit(AccessMask::READ, access::READ);
        let _acting = self.as_caller(cx)?;
        Ok(check_access(location.fd(), mask)?)
    }
}
