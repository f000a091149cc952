use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tombolo_core::fs::{OpenFlags, OpenId};
use tombolo_core::{Answer, Stability};

/// The openings of a session that append, and how stable each makes what is written. Sessions without any
/// lock nothing.
#[derive(Debug, Default)]
pub(super) struct Appending {
    count: AtomicUsize,
    openings: Mutex<HashMap<OpenId, Stability>>,
}

impl Appending {
    /// Notes the opening that `answer` will bring, if it is one of them.
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

    /// Notes an opening that is there already, if it is one of them.
    pub fn note(&self, flags: OpenFlags, open: OpenId) {
        if flags.contains(OpenFlags::APPEND) {
            self.add(open, stability(flags));
        }
    }

    fn add(&self, open: OpenId, stability: Stability) {
        let mut openings = self.openings();
        openings.insert(open, stability);
        self.count.store(openings.len(), Ordering::Relaxed);
    }

    /// How stable each write through an opening is, if it appends.
    #[inline]
    pub fn stability(&self, open: OpenId) -> Option<Stability> {
        // A thread that writes through an opening has seen the count that opening it left.
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.openings().get(&open).copied()
    }

    /// It is closed.
    #[inline]
    pub fn remove(&self, open: OpenId) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut openings = self.openings();
        openings.remove(&open);
        self.count.store(openings.len(), Ordering::Relaxed);
    }

    fn openings(&self) -> MutexGuard<'_, HashMap<OpenId, Stability>> {
        self.openings.lock().unwrap_or_else(PoisonError::into_inner)
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
