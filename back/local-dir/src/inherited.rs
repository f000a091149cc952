//! Descriptors of openings and record locks, which the keeper retains across a restart of this process.

use std::os::fd::{AsFd, OwnedFd};

use tombolo_core::fs::{Descriptors, File, LockOwner, NodeId, OpenFlags, OpenId, PersistentHandle};
use tombolo_core::{Ctx, Error, Result};
use tombolo_sys::stat;

use crate::state::LocalSession;

impl Descriptors for LocalSession {
    fn of_opening(&self, file: File) -> Result<OwnedFd> {
        let open = self.0.files.find(file)?;
        open.require(OpenFlags::empty())?;
        open.fd().try_clone_to_owned().map_err(Error::io)
    }

    fn of_records(&self, file: File, owner: LockOwner) -> Result<Option<OwnedFd>> {
        self.0.records.duplicate(file.node, owner)
    }

    /// Adopts an open file. The descriptor may belong to a mount of the previous process's sandbox; look-ups
    /// and other openings of the node use the mounts of this process.
    fn opening(
        &self,
        _cx: &Ctx,
        node: &PersistentHandle,
        descriptor: OwnedFd,
        flags: OpenFlags,
    ) -> Result<(NodeId, OpenId)> {
        let (place, stat) = self.0.find_nameless(node)?;
        let descriptor_stat = stat::stat(descriptor.as_fd())?;
        if !stat.is_regular() || (descriptor_stat.device, descriptor_stat.inode) != (stat.device, stat.inode)
        {
            return Err(Error::Stale);
        }
        let permit = self.0.allowance.permit()?;
        let mount = self.0.export.mounts.index_of(&stat).ok_or(Error::Stale)?;
        let (entry, _) = self.0.adopt(place, true, &stat, self.0.node_permit()?, NodeId::ROOT, None)?;
        let opened = self.0.enter(descriptor, permit, entry.node, flags, mount);
        let open = opened.inspect_err(|_| drop(self.0.forget_node(entry.node, 1)))?;
        Ok((entry.node, open))
    }

    fn records(&self, file: File, owner: LockOwner, descriptor: OwnedFd) -> Result<()> {
        self.0.records.adopt(&*self.0.files.find(file)?, file.open, owner, descriptor)
    }
}
