//! Openings. NFS has none: they are what the client remembers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tombolo_core::fs::{File, NodeId, OpenFlags, OpenId};
use tombolo_core::{Error, Result};
use tombolo_wire_nfs3::{CookieVerifier, FileHandleBuf};

/// The openings of a session.
#[derive(Debug, Default)]
pub struct Openings {
    open: Mutex<HashMap<OpenId, Arc<Opening>>>,
    last: AtomicU64,
}

/// One of them.
#[derive(Debug)]
pub struct Opening {
    /// Of which node.
    pub node: NodeId,
    /// The node's handle.
    pub handle: FileHandleBuf,
    /// How it was opened.
    pub flags: OpenFlags,
    /// What the server gave with its cookies.
    pub verifier: Mutex<Option<CookieVerifier>>,
}

impl Openings {
    /// Remembers an opening.
    pub fn add(&self, node: NodeId, handle: FileHandleBuf, flags: OpenFlags) -> OpenId {
        let open = OpenId(self.last.fetch_add(1, Ordering::Relaxed) + 1);
        self.lock().insert(open, Arc::new(Opening { node, handle, flags, verifier: Mutex::new(None) }));
        open
    }

    /// An opening that goes with its node.
    pub fn of(&self, file: File) -> Result<Arc<Opening>> {
        let found = self.lock().get(&file.open).cloned();
        found.filter(|opening| opening.node == file.node).ok_or(Error::BadOpen)
    }

    /// An opening that was made for this.
    pub fn made_for(&self, file: File, flags: OpenFlags) -> Result<Arc<Opening>> {
        Some(self.of(file)?).filter(|opening| opening.flags.contains(flags)).ok_or(Error::BadOpen)
    }

    /// Ends one.
    pub fn remove(&self, file: File) {
        self.lock().remove(&file.open);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<OpenId, Arc<Opening>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
