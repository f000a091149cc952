//! The openings of a session that append, whose writes must not run twice.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tombolo_core::fs::{OpenFlags, OpenId};
use tombolo_core::{Answer, Stability, lock};

/// The appending openings of a session, with the stability of their writes. Without such openings, a write
/// costs one atomic load.
#[derive(Debug, Default)]
pub(super) struct Appending {
    count: AtomicUsize,
    openings: Mutex<HashMap<OpenId, Stability>>,
}

impl Appending {
    /// Registers the opening in `answer`, if it appends.
    #[inline]
    pub fn watch<T: Send + 'static>(
        self: &Arc<Self>,
        flags: OpenFlags,
        answer: Answer<T>,
        opening: fn(&T) -> OpenId,
    ) -> Answer<T> {
        if !flags.contains(OpenFlags::APPEND) {
            return answer;
        }
        let appending = self.clone();
        answer.map(move |value| {
            appending.add(opening(&value), stability(flags));
            value
        })
    }

    /// Registers an existing opening, if it appends.
    pub fn note(&self, flags: OpenFlags, open: OpenId) {
        if flags.contains(OpenFlags::APPEND) {
            self.add(open, stability(flags));
        }
    }

    fn add(&self, open: OpenId, stability: Stability) {
        let mut openings = lock(&self.openings);
        openings.insert(open, stability);
        self.count.store(openings.len(), Ordering::Relaxed);
    }

    /// Returns the stability of each write through an opening; `None` if the opening does not append.
    #[inline]
    pub fn stability(&self, open: OpenId) -> Option<Stability> {
        // A thread that writes through an opening has seen the count stored when it was opened.
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        lock(&self.openings).get(&open).copied()
    }

    /// Unregisters an opening that is being closed, if it was registered.
    #[inline]
    pub fn remove(&self, open: OpenId) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut openings = lock(&self.openings);
        openings.remove(&open);
        self.count.store(openings.len(), Ordering::Relaxed);
    }
}

fn stability(flags: OpenFlags) -> Stability {
    if flags.contains(OpenFlags::SYNC) {
        Stability::FileSync
    } else if flags.contains(OpenFlags::DATA_SYNC) {
        Stability::DataSync
    } else {
        Stability::Unstable
    }
}
