//! Handles that outlive restarts: the kernel's own.

use std::os::fd::AsFd;

use tombolo_core::fs::{
    Answer, Ctx, Entry, Error, NodeId, PersistentHandle, PersistentHandles, Result, Volume,
};
use tombolo_sys::handle::FileHandle;
use tombolo_sys::stat;

use crate::session::{LocalSession, Session};

impl PersistentHandles for LocalSession {
    fn volume(&self) -> Volume {
        self.0.export.mounts.mount(0).map(|mount| mount.volume).unwrap_or_default()
    }

    fn handle_of(&self, cx: &Ctx, node: NodeId) -> Answer<PersistentHandle> {
        if self.is_quick(node) {
            return self.now(|session| session.handle_of(node));
        }
        self.later(cx, move |session, _| session.handle_of(node))
    }

    fn resolve(&self, cx: &Ctx, handle: &PersistentHandle) -> Answer<Entry> {
        let handle = match FileHandle::from_parts(handle.kind, &handle.bytes) {
            Ok(handle) => handle,
            Err(_) => return Answer::err(Error::Stale),
        };
        if self.is_quick(NodeId::ROOT) {
            return self.now(|session| session.resolve(&handle));
        }
        self.later(cx, move |session, _| session.resolve(&handle))
    }
}

impl Session {
    /// Only for nodes on the export's own file system: a handle does not say which one it is for.
    fn handle_of(&self, node: NodeId) -> Result<PersistentHandle> {
        let place = self.place(node)?;
        if place.identity.key.mount != 0 {
            return Err(Error::NotSupported);
        }
        let (handle, _) = FileHandle::of(place.fd())?;
        Ok(PersistentHandle { kind: handle.kind(), bytes: handle.bytes().into() })
    }

    fn resolve(&self, handle: &FileHandle) -> Result<Entry> {
        let found = self.export.mounts.mount(0)?.find(handle).map_err(|error| match error {
            // Bytes that never were a handle, or one of a file that is gone.
            Error::InvalidArgument | Error::NotFound => Error::Stale,
            error => error,
        })?;
        let stat = stat::stat(found.as_fd())?;
        if stat.links == 0 || !self.is_inside(&found)? {
            return Err(Error::Stale);
        }
        self.adopt(found, true, &stat, NodeId::ROOT, None).map(|(entry, _)| entry)
    }

    /// Whether a file lies beneath the root, as far as the kernel knows: it always does for directories, and for others
    /// when one of their names is in memory. One whose names are not is taken for inside, since its handle was given out
    /// here once; front ends see to that (they sign handles).
    fn is_inside(&self, found: &std::os::fd::OwnedFd) -> Result<bool> {
        let path = self.export.own.path(found.as_fd())?;
        let root = self.export.own.path(self.export.root.fd())?;
        let unknown = path == b"/" && root != b"/";
        let beneath = path
            .strip_prefix(root.as_slice())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/") || root == b"/");
        let is_directory = stat::stat(found.as_fd())?.is_directory();
        Ok(beneath || (unknown && !is_directory))
    }
}
