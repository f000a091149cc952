//! The cached file system, accessed through one session.

use std::sync::Arc;
use std::time::Instant;

use tombolo_core::fs::{Attr, Entry, File, FileSystem, NodeId, PersistentHandle, PersistentHandles};
use tombolo_core::{Answer, Ctx, Error, Interrupt, Result, Want};
use tombolo_host_runtime::pending::{Pending, PendingGuard};

use crate::store::ObjectId;

/// The origin's session, shared by all sessions of the cache: each operation acts for its own user.
pub(crate) struct Origin {
    pub fs: Arc<dyn FileSystem>,
    /// Openings of regular files for fetches of the cache rather than for a client's opening, counted by
    /// object: a removal of the file waits for their end.
    pub unasked: Pending<ObjectId>,
}

impl Origin {
    pub(crate) fn handles(&self) -> Result<&dyn PersistentHandles> {
        self.fs.persistent_handles().ok_or(Error::NotSupported)
    }

    /// Returns the attributes that accompanied a reply to a request made at `asked`, if any did.
    pub(crate) fn told(&self, cx: &Ctx, node: NodeId, asked: Instant) -> Option<Attr> {
        let cx = Ctx { fetched_since: Some(asked), ..cx.clone() };
        match self.fs.getattr(&cx, node, None) {
            Answer::Done(told) => told.ok(),
            // A pending answer would be another request; it has not started, and never does once dropped.
            Answer::Later(_) => None,
        }
    }

    /// Releases one look-up of a node of the origin.
    pub(crate) fn forget(&self, node: NodeId) {
        if node == NodeId::ROOT {
            return;
        }
        self.fs.forget(&self.own_ctx(), &[(node, 1)]);
    }

    /// Resolves the origin's handle of an object. Counts a look-up at the origin, which must be released.
    pub(crate) async fn resolve(&self, cx: &Ctx, handle: &PersistentHandle) -> Result<Entry> {
        self.handles()?.resolve(&at_origin(cx), handle).resolve().await
    }

    /// Returns the context of requests on behalf of no client: the superuser's.
    pub(crate) fn own_ctx(&self) -> Ctx {
        Ctx::root(SESSION)
    }
}

/// A look-up of a node of the origin, released on drop unless an object has taken it over.
pub(crate) struct LookUp<'a> {
    pub origin: &'a Origin,
    pub node: NodeId,
    pub is_taken: bool,
}

impl Drop for LookUp<'_> {
    fn drop(&mut self) {
        if !self.is_taken {
            self.origin.forget(self.node);
        }
    }
}

/// Session of the cache at the origin.
pub(crate) const SESSION: tombolo_core::SessionId = tombolo_core::SessionId(0);

/// Returns the context of a client's request as passed to the origin: without the key of an exactly-once
/// request, which the reply layer above has used, and with attributes in replies to opens and changes.
pub(crate) fn at_origin(cx: &Ctx) -> Ctx {
    Ctx {
        key: None,
        want: Want::CHANGE_ATTRS | Want::OPEN_ATTRS,
        fetched_since: None,
        found: None,
        opens_unchecked: false,
        lists_subdirectories: false,
        ..cx.clone()
    }
}

/// Returns the context of work that outlives its request: without interrupt and deadline.
pub(crate) fn detached(cx: &Ctx) -> Ctx {
    Ctx { interrupt: Interrupt::default(), deadline: None, ..at_origin(cx) }
}

/// An opening at the origin, closed on drop.
pub(crate) struct OriginFile {
    origin: Arc<Origin>,
    pub file: File,
    /// Context of the user that opened the file, for work that outlives the request.
    pub cx: Ctx,
    /// Guard of an opening for a fetch, if it is one; dropped last, after the release.
    _unasked: Option<PendingGuard<ObjectId>>,
}

impl OriginFile {
    pub(crate) fn new(
        origin: &Arc<Origin>,
        file: File,
        cx: &Ctx,
        unasked: Option<PendingGuard<ObjectId>>,
    ) -> Arc<Self> {
        Arc::new(Self { origin: origin.clone(), file, cx: detached(cx), _unasked: unasked })
    }

    pub(crate) fn fs(&self) -> &dyn FileSystem {
        &*self.origin.fs
    }
}

impl Drop for OriginFile {
    fn drop(&mut self) {
        self.origin.fs.release(&self.cx, self.file);
    }
}
