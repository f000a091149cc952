//! Identity of callers, for file systems that check permissions themselves.
//!
//! A FUSE request carries the caller's user and primary group, but not all supplementary groups. Where the
//! file system checks permissions (an NFS server called with the caller's credentials), the groups are looked
//! up. Reading, writing and most other operations on an open file run as the user that opened it, as in
//! POSIX: a program that opened a file and then dropped its privileges can still read it, and pages written
//! back by the kernel belong to no user in particular.

use std::collections::HashMap;
use std::sync::Mutex;
use tombolo_core::fs::OpenId;
use tombolo_core::{Identity, lock};
use tombolo_sys::caller;
use tombolo_wire_fuse::layout::attr::SetattrValid;
use tombolo_wire_fuse::{FileHandle, Request};

/// A session's caller identities.
#[derive(Debug, Default)]
pub(super) struct Callers {
    /// `true` if the file system checks permissions itself; otherwise the other fields are unused.
    are_checked: bool,
    /// `true` if callers are threads of this host.
    are_local: bool,
    openers: Mutex<HashMap<OpenId, Identity>>,
}

impl Callers {
    pub(super) fn new(are_checked: bool, are_local: bool) -> Callers {
        Callers { are_checked, are_local, openers: Mutex::default() }
    }

    /// Returns the identity under which a request from this thread is performed. `named` are the user and
    /// group in the request.
    pub(super) fn identity(&self, request: &Request<'_>, thread: u32, named: Identity) -> Identity {
        if !self.are_checked {
            return named;
        }
        if let Some(file) = file_of(request)
            && let Some(opener) = lock(&self.openers).get(&OpenId(file.0))
        {
            return opener.clone();
        }
        if self.are_local && named.uid != 0 && needs_groups(request) {
            with_groups(thread, named)
        } else {
            named
        }
    }

    /// Records the opener of a file. To be called before the opener receives the handle, so that its first
    /// request on the handle finds the record.
    pub(super) fn opened(&self, open: OpenId, by: Option<Identity>) {
        if let Some(by) = by {
            lock(&self.openers).insert(open, by);
        }
    }

    /// Returns the identity to record as a file's opener, if identities matter.
    pub(super) fn opener(&self, identity: &Identity) -> Option<Identity> {
        self.are_checked.then(|| identity.clone())
    }

    pub(super) fn closed(&self, open: OpenId) {
        if self.are_checked {
            lock(&self.openers).remove(&open);
        }
    }
}

/// Returns the open file under whose opener's identity a request is performed; `None` if it is performed
/// under the caller's.
pub(crate) fn file_of(request: &Request<'_>) -> Option<FileHandle> {
    match request {
        Request::Read(read) | Request::Readdir(read) | Request::Readdirplus(read) => Some(read.handle),
        Request::Write(write) => Some(write.handle),
        Request::Flush { handle, .. }
        | Request::Fsync { handle, .. }
        | Request::Fsyncdir { handle, .. }
        | Request::Fallocate { handle, .. }
        | Request::Lseek { handle, .. } => Some(*handle),
        Request::Release(release) | Request::Releasedir(release) => Some(release.handle),
        Request::CopyFileRange(copy) | Request::CopyFileRange64(copy) => Some(copy.from),
        // ftruncate(2): access is decided by how the file was opened.
        Request::Setattr(set) if set.valid.contains(SetattrValid::SIZE) => set.handle,
        Request::Getattr { handle } | Request::Statx { handle, .. } => *handle,
        _ => None,
    }
}

/// Returns `true` if the caller's groups affect the outcome. Every caller that has reached a node may read
/// its attributes.
fn needs_groups(request: &Request<'_>) -> bool {
    !matches!(
        request,
        Request::Getattr { .. }
            | Request::Statx { .. }
            | Request::Forget { .. }
            | Request::BatchForget(_)
            | Request::Interrupt { .. }
            | Request::Init(_)
            | Request::Destroy
            | Request::Syncfs
    )
}

/// Adds the groups of the requesting thread. The thread is blocked on this request, so its identity is
/// unchanged, unless it was killed.
fn with_groups(thread: u32, named: Identity) -> Identity {
    let groups = match caller::of_thread(thread) {
        Ok(caller) if (caller.uid, caller.gid) == (named.uid, named.gid) => caller.groups,
        Ok(_) => return named,
        Err(error) => {
            tracing::debug!(thread, %error, "cannot read a caller's groups");
            return named;
        }
    };
    Identity { groups: (!groups.is_empty()).then(|| groups.into()), ..named }
}
