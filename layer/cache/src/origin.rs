//! The cached file system, as one session of it.

use std::sync::Arc;
use std::time::Instant;

use tombolo_core::fs::{Attr, Entry, File, FileSystem, NodeId, PersistentHandle, PersistentHandles};
use tombolo_core::{Answer, Ctx, Error, Interrupt, Result, Want};
use tombolo_host_runtime::pending::{Pending, PendingGuard};

use crate::store::ObjectId;

/// The origin's session. All sessions of the cache share it: each operation is made in its own user's name.
pub(crate) struct Origin {
    pub fs: Arc<dyn FileSystem>,
    /// Openings of files that no caller has.
    pub unasked: Pending<ObjectId>,
}

impl Origin {
    pub(crate) fn handles(&self) -> Result<&dyn PersistentHandles> {
        self.fs.persistent_handles().ok_or(Error::NotSupported)
    }

    /// The attributes that came along with the answer to what was asked at `asked`, if any did.
    pub(crate) fn told(&self, cx: &Ctx, node: NodeId, asked: Instant) -> Option<Attr> {
        let cx = Ctx { fetched_since: Some(asked), ..cx.clone() };
        match self.fs.getattr(&cx, node, None) {
            Answer::Done(told) => told.ok(),
            // It would have to ask: it has not begun to.
            Answer::Later(_) => None,
        }
    }

    /// Takes back one look-up.
    pub(crate) fn forget(&self, node: NodeId) {
        if node == NodeId::ROOT {
            return;
        }
        self.fs.forget(&self.own_ctx(), &[(node, 1)]);
    }

    /// Asks for an object by its handle.
    pub(crate) async fn resolve(&self, cx: &Ctx, handle: &PersistentHandle) -> Result<Entry> {
        self.handles()?.resolve(&at_origin(cx), handle).resolve().await
    }

    /// For what no caller asks for.
    pub(crate) fn own_ctx(&self) -> Ctx {
        Ctx::root(SESSION)
    }
}

/// The one session of the origin.
pub(crate) const SESSION: tombolo_core::SessionId = tombolo_core::SessionId(0);

/// A request of a client, as the origin gets it: not to be performed only once (the layer above sees to
/// that), with attributes of opens and changes.
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

/// The same for work that goes on after the request is answered.
pub(crate) fn detached(cx: &Ctx) -> Ctx {
    Ctx { interrupt: Interrupt::default(), deadline: None, ..at_origin(cx) }
}

/// An opening of the origin. Dropping it ends it.
pub(crate) struct OriginFile {
    origin: Arc<Origin>,
    pub file: File,
    /// The user that opened it, for what goes on without a request.
    pub cx: Ctx,
    /// Ends after it.
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
