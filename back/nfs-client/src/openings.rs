//! The openings of a session. The server knows of none.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tombolo_core::fs::{Error, File, FileType, OpenFlags, OpenId, Result};

use crate::data::ReadAhead;
use crate::listing::Progress;
use crate::nodes::Node;

/// One opening.
#[derive(Debug)]
pub(crate) struct Opening {
    pub node: Arc<Node>,
    pub flags: OpenFlags,
    /// What is read ahead of its reader.
    pub read_ahead: ReadAhead,
    /// How far a listing has come.
    pub listing: Mutex<Progress>,
}

/// All openings of a session.
#[derive(Debug)]
pub(crate) struct Openings {
    next: AtomicU64,
    openings_max: usize,
    by_id: Mutex<HashMap<OpenId, Arc<Opening>>>,
    regular: AtomicUsize,
}

impl Openings {
    /// At most so many at a time.
    pub(crate) fn new(openings_max: usize) -> Self {
        Self { next: AtomicU64::new(1), openings_max, by_id: Mutex::default(), regular: AtomicUsize::new(0) }
    }

    /// Opens a node.
    ///
    /// # Errors
    /// More openings than a session may have.
    pub(crate) fn add(&self, node: &Arc<Node>, flags: OpenFlags) -> Result<OpenId> {
        let opening = Opening {
            node: node.clone(),
            flags,
            read_ahead: ReadAhead::default(),
            listing: Mutex::default(),
        };
        let mut by_id = self.by_id();
        if by_id.len() >= self.openings_max {
            return Err(Error::TooManyOpen);
        }
        let id = OpenId(self.next.fetch_add(1, Ordering::Relaxed));
        by_id.insert(id, Arc::new(opening));
        node.opened();
        self.regular.fetch_add(usize::from(node.file_type == FileType::Regular), Ordering::AcqRel);
        Ok(id)
    }

    /// An opening.
    ///
    /// # Errors
    /// There is no such opening of that node.
    pub(crate) fn of(&self, file: File) -> Result<Arc<Opening>> {
        let opening = self.by_id().get(&file.open).cloned();
        opening.filter(|opening| opening.node.id == file.node).ok_or(Error::BadOpen)
    }

    /// An opening for a purpose.
    ///
    /// # Errors
    /// There is no such opening of that node, or it was made for something else.
    pub(crate) fn made_for(&self, file: File, purpose: OpenFlags) -> Result<Arc<Opening>> {
        self.of(file).and_then(|opening| {
            if opening.flags.contains(purpose) { Ok(opening) } else { Err(Error::BadOpen) }
        })
    }

    /// Ends an opening. The node with it when it was the node's last.
    pub(crate) fn end(&self, file: File) -> Option<(Arc<Opening>, bool)> {
        let mut by_id = self.by_id();
        let opening = by_id.get(&file.open).filter(|opening| opening.node.id == file.node).cloned()?;
        by_id.remove(&file.open);
        self.regular.fetch_sub(usize::from(opening.node.file_type == FileType::Regular), Ordering::AcqRel);
        let was_last = opening.node.closed();
        Some((opening, was_last))
    }

    /// Is any file open?
    pub(crate) fn any_file(&self) -> bool {
        self.regular.load(Ordering::Acquire) > 0
    }

    /// Ends all.
    pub(crate) fn end_all(&self) -> Vec<Arc<Opening>> {
        std::mem::take(&mut *self.by_id()).into_values().collect()
    }

    fn by_id(&self) -> MutexGuard<'_, HashMap<OpenId, Arc<Opening>>> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
