//! Openings of a session, unknown to the server.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tombolo_core::fs::{File, FileType, OpenFlags, OpenId};
use tombolo_core::{Budget, Error, Permit, Resource, Result, lock};

use crate::data::ReadAhead;
use crate::listing::Progress;
use crate::nodes::Node;

/// An opening, which only this client knows: NFS version 3 has none.
#[derive(Debug)]
pub(crate) struct Opening {
    pub node: Arc<Node>,
    pub flags: OpenFlags,
    /// Read-ahead for sequential reads through this opening.
    pub read_ahead: ReadAhead,
    /// Progress of listing the directory, if it is one.
    pub listing: Mutex<Progress>,
    _permit: Permit,
}

/// All openings of a session.
#[derive(Debug)]
pub(crate) struct Openings {
    next: AtomicU64,
    counts: Arc<Budget>,
    by_id: Mutex<HashMap<OpenId, Arc<Opening>>>,
    /// Number of openings of regular files.
    regular: AtomicUsize,
}

impl Openings {
    /// Creates an empty set of openings, whose number the budget limits.
    pub(crate) fn new(counts: Arc<Budget>) -> Self {
        Self { next: AtomicU64::new(1), counts, by_id: Mutex::default(), regular: AtomicUsize::new(0) }
    }

    /// Takes a permit for one more opening; [`Error::TooManyOpen`] at the session's limit.
    pub(crate) fn permit(&self) -> Result<Permit> {
        self.counts.take(Resource::Opens, 1).ok_or(Error::TooManyOpen)
    }

    pub(crate) fn add(&self, permit: Permit, node: &Arc<Node>, flags: OpenFlags) -> OpenId {
        let opening = Opening {
            node: node.clone(),
            flags,
            read_ahead: ReadAhead::default(),
            listing: Mutex::default(),
            _permit: permit,
        };
        let mut by_id = lock(&self.by_id);
        let id = OpenId(self.next.fetch_add(1, Ordering::Relaxed));
        by_id.insert(id, Arc::new(opening));
        node.opened();
        self.regular.fetch_add(usize::from(node.file_type == FileType::Regular), Ordering::AcqRel);
        id
    }

    /// Returns an opening; [`Error::BadOpen`] if the node has no such opening.
    pub(crate) fn of(&self, file: File) -> Result<Arc<Opening>> {
        let opening = lock(&self.by_id).get(&file.open).cloned();
        opening.filter(|opening| opening.node.id == file.node).ok_or(Error::BadOpen)
    }

    /// Returns an opening; [`Error::BadOpen`] if the node has no such opening, or it lacks one of the flags.
    pub(crate) fn made_for(&self, file: File, purpose: OpenFlags) -> Result<Arc<Opening>> {
        self.of(file).and_then(|opening| {
            if opening.flags.contains(purpose) { Ok(opening) } else { Err(Error::BadOpen) }
        })
    }

    /// Ends an opening; returns it, and `true` if it was the node's last.
    pub(crate) fn end(&self, file: File) -> Option<(Arc<Opening>, bool)> {
        let mut by_id = lock(&self.by_id);
        let opening = by_id.get(&file.open).filter(|opening| opening.node.id == file.node).cloned()?;
        by_id.remove(&file.open);
        self.regular.fetch_sub(usize::from(opening.node.file_type == FileType::Regular), Ordering::AcqRel);
        let was_last = opening.node.closed();
        Some((opening, was_last))
    }

    /// Returns `true` if any regular file is open.
    pub(crate) fn any_file(&self) -> bool {
        self.regular.load(Ordering::Acquire) > 0
    }

    /// Removes all openings at the end of the session, and returns them.
    pub(crate) fn end_all(&self) -> Vec<Arc<Opening>> {
        std::mem::take(&mut *lock(&self.by_id)).into_values().collect()
    }
}
