//! Persistent handles, made from the kernel's file handles (open_by_handle_at(2)).
//!
//! A kernel handle does not name its file system. Handles of files on the root's mount are the kernel's,
//! unchanged; handles of other mounts inside the export have [`ON_SUBMOUNT`] in their kind and a [`Tag`]
//! before their bytes.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use smallvec::SmallVec;
use tombolo_core::fs::{Entry, NodeId, PersistentHandle, PersistentHandles, Volume};
use tombolo_core::{Answer, Ctx, Error, Result};
use tombolo_sys::handle::FileHandle;
use tombolo_sys::open::open_parent;
use tombolo_sys::stat::{self, S_IFDIR, Stat};

use crate::attr::attr_of;
use crate::mounts::{Mount, Tag};
use crate::state::{LocalSession, Session};
use crate::submounts::is_beneath;

/// Flag in the kind of handles whose bytes begin with a [`Tag`]. The kernel's own kinds are below 256.
const ON_SUBMOUNT: i32 = 1 << 14;

impl PersistentHandles for LocalSession {
    fn volume(&self) -> Volume {
        self.0.export.mounts.mount(0).map(|mount| mount.volume).unwrap_or_default()
    }

    fn handle_of(&self, cx: &Ctx, node: NodeId) -> Answer<PersistentHandle> {
        if let Some(handle) = self.0.cached_handle(node) {
            return handle.into();
        }
        self.dispatch(cx, node, move |session, _| session.handle_of(node))
    }

    fn resolve(&self, cx: &Ctx, handle: &PersistentHandle) -> Answer<Entry> {
        let Some(parts) = Parts::of(handle) else { return Answer::err(Error::Stale) };
        // An unknown mount is searched for, which may take long.
        let is_registered = parts.tag.is_none_or(|tag| !self.0.export.mounts.tagged(tag).is_empty());
        if is_registered && self.is_quick(NodeId::ROOT) {
            return self.now(|session| session.resolve(&parts));
        }
        self.later(cx, move |session, _| session.resolve(&parts))
    }

    fn parent(&self, cx: &Ctx, node: NodeId) -> Answer<Entry> {
        self.dispatch(cx, node, move |session, cx| session.parent(cx, node))
    }

    fn node_by_number(&self, cx: &Ctx, node: NodeId) -> Answer<Entry> {
        self.dispatch(cx, node, move |session, _| session.node_by_number(node))
    }
}

/// A parsed persistent handle.
struct Parts {
    tag: Option<Tag>,
    handle: FileHandle,
}

impl Parts {
    fn of(handle: &PersistentHandle) -> Option<Self> {
        let (tag, bytes) = match handle.kind & ON_SUBMOUNT {
            0 => (None, handle.bytes.as_slice()),
            _ => handle.bytes.split_first_chunk().map(|(tag, rest)| (Some(Tag(*tag)), rest))?,
        };
        Some(Self { tag, handle: FileHandle::from_parts(handle.kind & !ON_SUBMOUNT, bytes).ok()? })
    }

    fn join(handle: &FileHandle, mount_index: u32, mount: &Mount) -> Result<PersistentHandle> {
        let mut bytes = SmallVec::new();
        let mut kind = handle.kind();
        if mount_index != 0 {
            let tag = mount.tag().filter(|_| mount.handles && kind & ON_SUBMOUNT == 0);
            bytes.extend_from_slice(&tag.ok_or(Error::NotSupported)?.0);
            kind |= ON_SUBMOUNT;
        }
        bytes.extend_from_slice(handle.bytes());
        Ok(PersistentHandle { kind, bytes })
    }
}

impl Session {
    /// Returns a node's handle without a system call, if the node table has it.
    fn cached_handle(&self, node: NodeId) -> Option<Result<PersistentHandle>> {
        let mounts = &self.export.mounts;
        if node == NodeId::ROOT {
            return self.export.root_handle.get().map(|handle| Parts::join(handle, 0, &*mounts.mount(0)?));
        }
        self.table.with_handle(node, |handle, mount| Parts::join(handle, mount, &*mounts.mount(mount)?))
    }

    fn handle_of(&self, node: NodeId) -> Result<PersistentHandle> {
        let location = self.location(node)?;
        let (handle, _) = FileHandle::of(location.fd())?;
        let mount = location.identity.key.mount;
        let answer = Parts::join(&handle, mount, &*self.export.mounts.mount(mount)?);
        match node {
            NodeId::ROOT => drop(self.export.root_handle.set(handle)),
            node => self.table.remember_handle(node, handle),
        }
        answer
    }

    fn resolve(&self, parts: &Parts) -> Result<Entry> {
        let (found, stat) = match parts.tag {
            None => self.find_by_handle(&*self.export.mounts.mount(0)?, &parts.handle)?,
            Some(tag) => self.find_on_submount(tag, &parts.handle)?,
        };
        self.adopt(found, true, &stat, self.node_permit()?, NodeId::ROOT, None).map(|(entry, _)| entry)
    }

    /// Looks up a node again by its number. The node may be a forgotten one whose number is retained.
    fn node_by_number(&self, node: NodeId) -> Result<Entry> {
        let entry = match self.table.forgotten(node) {
            Some((identity, handle)) => {
                let mount = self.export.mounts.mount(identity.key.mount)?;
                let (found, stat) = self.find_by_handle(&mount, &handle)?;
                self.adopt(found, true, &stat, self.node_permit()?, NodeId::ROOT, None)?.0
            }
            None => {
                let stat = stat::stat(self.location(node)?.fd())?;
                self.recognise(&stat).ok_or(Error::Stale)?
            }
        };
        if entry.node != node {
            self.forget_node(entry.node, 1);
            return Err(Error::Stale);
        }
        Ok(entry)
    }

    fn parent(&self, cx: &Ctx, node: NodeId) -> Result<Entry> {
        let location = self.location(node)?;
        if location.kind() != S_IFDIR {
            return Err(Error::NotDirectory);
        }
        if node == NodeId::ROOT {
            return Ok(Entry { node, attr: attr_of(&stat::stat(location.fd())?) });
        }
        let above = {
            let _acting = self.checked(cx)?;
            open_parent(location.fd())?
        };
        let stat = stat::stat(above.as_fd())?;
        if !self.is_inside(&above, &stat)? {
            return Err(Error::Stale);
        }
        self.admit(&stat).map_err(|_| Error::Stale)?;
        self.adopt(above, true, &stat, self.node_permit()?, NodeId::ROOT, None).map(|(entry, _)| entry)
    }

    /// Searches all mounts of the file system with this tag, because possibly only one of them shows the
    /// file. If none does, registers unknown mounts and searches again, unless that was done within the last
    /// second.
    fn find_on_submount(&self, tag: Tag, handle: &FileHandle) -> Result<(OwnedFd, Stat)> {
        let find =
            |mounts: Vec<Arc<Mount>>| mounts.iter().find_map(|mount| self.find_by_handle(mount, handle).ok());
        if let Some(found) = find(self.export.mounts.tagged(tag)) {
            return Ok(found);
        }
        let searched = self.export.register_submounts();
        searched.then(|| find(self.export.mounts.tagged(tag))).flatten().ok_or(Error::Stale)
    }

    fn find_by_handle(&self, mount: &Mount, handle: &FileHandle) -> Result<(OwnedFd, Stat)> {
        let (found, stat) = self.find_as_it_is(mount, handle)?;
        if stat.links == 0 || !self.is_inside(&found, &stat)? {
            return Err(Error::Stale);
        }
        Ok((found, stat))
    }

    /// Finds a file that may have lost its last name while it is open. That it lies inside the export is not
    /// checked, because a file without a name has no path: the caller must know it.
    pub(crate) fn find_nameless(&self, handle: &PersistentHandle) -> Result<(OwnedFd, Stat)> {
        let parts = Parts::of(handle).ok_or(Error::Stale)?;
        let mounts = &self.export.mounts;
        let mounts = match parts.tag {
            None => vec![mounts.mount(0)?],
            Some(tag) => mounts.tagged(tag),
        };
        let mut found = mounts.iter().filter_map(|mount| self.find_as_it_is(mount, &parts.handle).ok());
        found.next().ok_or(Error::Stale)
    }

    fn find_as_it_is(&self, mount: &Mount, handle: &FileHandle) -> Result<(OwnedFd, Stat)> {
        let found = mount.find(handle).map_err(|error| match error {
            // Bytes that never were a handle, or the handle of a deleted file.
            Error::InvalidArgument | Error::NotFound => Error::Stale,
            error => error,
        })?;
        let stat = stat::stat(found.as_fd())?;
        self.admit(&stat).map_err(|_| Error::Stale)?;
        Ok((found, stat))
    }

    /// Returns `true` if a file lies beneath the root, as far as the kernel knows. The kernel knows the path
    /// of every directory, but of another file only if one of its names is cached. A file without a cached
    /// name counts as inside, because its handle was issued by this export, which front ends guarantee by
    /// signing handles.
    fn is_inside(&self, found: &OwnedFd, stat: &Stat) -> Result<bool> {
        let path = self.export.own.path(found.as_fd())?;
        let root = self.export.own.path(self.export.root.fd())?;
        let unknown = path == b"/" && root != b"/";
        Ok(is_beneath(&path, &root) || (unknown && !stat.is_directory()))
    }
}
