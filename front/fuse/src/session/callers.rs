//! The identity of callers, where the file system decides by that.
//!
//! A FUSE request says which user and which group asks, and leaves out the user's other groups. Where the
//! file system checks permissions (a server that is asked under the caller's name) they are looked up. And
//! what is done through an open file is done as the user that opened it, as POSIX has it: a program that
//! opened a file and then gave its rights up goes on reading it, and pages that the kernel writes back belong
//! to no user in particular.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tombolo_core::Identity;
use tombolo_core::fs::OpenId;
use tombolo_sys::caller;
use tombolo_wire_fuse::layout::attr::SetattrValid;
use tombolo_wire_fuse::{FileHandle, Request};

/// What a session knows of its callers.
#[derive(Debug, Default)]
pub(super) struct Callers {
    /// Whether the file system checks permissions itself; else nothing here is of use.
    matter: bool,
    /// Whether callers are threads of this machine.
    local: bool,
    openers: Mutex<HashMap<OpenId, Identity>>,
}

impl Callers {
    pub(super) fn new(matter: bool, local: bool) -> Callers {
        Callers { matter, local, openers: Mutex::default() }
    }

    /// The identity that a request from this thread in this name is performed as.
    pub(super) fn identity(&self, request: &Request<'_>, thread: u32, named: Identity) -> Identity {
        if !self.matter {
            return named;
        }
        if let Some(file) = file_of(request)
            && let Some(opener) = self.openers().get(&OpenId(file.0))
        {
            return opener.clone();
        }
        if self.local && named.uid != 0 && needs_groups(request) { with_groups(thread, named) } else { named }
    }

    /// A caller opened a file, and will be told so.
    pub(super) fn opened(&self, open: OpenId, by: Option<Identity>) {
        if let Some(by) = by {
            self.openers().insert(open, by);
        }
    }

    /// The identity to remember, if it is to be remembered at all.
    pub(super) fn opener(&self, identity: &Identity) -> Option<Identity> {
        self.matter.then(|| identity.clone())
    }

    pub(super) fn closed(&self, open: OpenId) {
        if self.matter {
            self.openers().remove(&open);
        }
    }

    fn openers(&self) -> MutexGuard<'_, HashMap<OpenId, Identity>> {
        self.openers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The open file that a request goes through.
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
        // ftruncate(2): that the file was opened for writing is what counts.
        Request::Setattr(set) if set.valid.contains(SetattrValid::SIZE) => set.handle,
        Request::Getattr { handle } | Request::Statx { handle, .. } => *handle,
        _ => None,
    }
}

/// Do the caller's groups matter for this? Attributes are for all callers that have reached the node.
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

/// The same with the groups of the thread that asks. It waits for the answer, so its identity is what it was;
/// unless it was killed.
fn with_groups(thread: u32, named: Identity) -> Identity {
    let groups = match caller::of_thread(thread) {
        Ok(caller) if (caller.uid, caller.gid) == (named.uid, named.gid) => caller.groups,
        Ok(_) => return named,
        Err(error) => {
            tracing::debug!(thread, %error, "the groups of a caller cannot be seen");
            return named;
        }
    };
    Identity { groups: (!groups.is_empty()).then(|| groups.into()), ..named }
}
