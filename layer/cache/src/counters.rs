//! What the cache has come to.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::lease::LeaseState;

/// Counts since the start.
#[derive(Debug, Default)]
pub struct Counters {
    hits: AtomicU64,
    misses: AtomicU64,
    served_bytes: AtomicU64,
    hit_bytes: AtomicU64,
    fetched_bytes: AtomicU64,
    saved_bytes: AtomicU64,
    borrowed_bytes: AtomicU64,
    lent_bytes: AtomicU64,
    refused_bytes: AtomicU64,
    /// Shared with what is known of zeroes.
    pub(crate) zero_bytes: Arc<AtomicU64>,
    guessed_bytes: AtomicU64,
    guess_used_bytes: AtomicU64,
    traced_bytes: AtomicU64,
    trace_used_bytes: AtomicU64,
    listed_ahead_bytes: AtomicU64,
    listing_used_bytes: AtomicU64,
    backed: AtomicU64,
}

/// What [`Counters`] say at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Operations that were answered without the origin.
    pub hits: u64,
    /// Operations that waited for it.
    pub misses: u64,
    /// Bytes that readers got.
    pub served_bytes: u64,
    /// Those of them that were here when they were asked for.
    pub hit_bytes: u64,
    /// Bytes that were read at the origin.
    pub fetched_bytes: u64,
    /// Those of them that did not cross the line, as what came was compressed.
    pub saved_bytes: u64,
    /// Bytes that another cache has lent.
    pub borrowed_bytes: u64,
    /// Bytes that were lent to others.
    pub lent_bytes: u64,
    /// Bytes that a cache in the middle has sent, or that were to be copied here, and that are not the
    /// file's.
    pub refused_bytes: u64,
    /// Bytes that were not read at the origin, as a sidecar says that they are zeroes.
    pub zero_bytes: u64,
    /// Bytes that were not read at the origin, as they were here already under another name.
    pub equal_bytes: u64,
    /// Those of the fetched ones that were small files which were not asked for.
    pub guessed_bytes: u64,
    /// Those of these that were read since.
    pub guess_used_bytes: u64,
    /// Those of the fetched ones that came as a trace said so, before they were asked for.
    pub traced_bytes: u64,
    /// Those of these that were read since.
    pub trace_used_bytes: u64,
    /// Bytes of listings that were not asked for, about.
    pub listed_ahead_bytes: u64,
    /// Those of these that were looked into since.
    pub listing_used_bytes: u64,
    /// How the lease of the tree stands, where one was taken.
    pub lease: Option<LeaseState>,
    /// Times that a file was given to be read past the cache: what is read so counts nowhere here.
    pub backed: u64,
}

impl Counters {
    /// What they say now.
    pub fn counts(&self) -> Counts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            hits: read(&self.hits),
            misses: read(&self.misses),
            served_bytes: read(&self.served_bytes),
            hit_bytes: read(&self.hit_bytes),
            fetched_bytes: read(&self.fetched_bytes),
            saved_bytes: read(&self.saved_bytes),
            borrowed_bytes: read(&self.borrowed_bytes),
            lent_bytes: read(&self.lent_bytes),
            refused_bytes: read(&self.refused_bytes),
            zero_bytes: read(&self.zero_bytes),
            equal_bytes: 0,
            guessed_bytes: read(&self.guessed_bytes),
            guess_used_bytes: read(&self.guess_used_bytes),
            traced_bytes: read(&self.traced_bytes),
            trace_used_bytes: read(&self.trace_used_bytes),
            listed_ahead_bytes: read(&self.listed_ahead_bytes),
            listing_used_bytes: read(&self.listing_used_bytes),
            lease: None,
            backed: read(&self.backed),
        }
    }

    pub(crate) fn hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn missed(&self) {
        self.misses.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn served(&self, bytes: usize, was_here: bool) {
        self.served_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        if was_here {
            self.hit_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    pub(crate) fn fetched(&self, bytes: usize) {
        self.fetched_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn saved(&self, bytes: usize) {
        self.saved_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn borrowed(&self, bytes: u64) {
        self.borrowed_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn lent(&self, bytes: u64) {
        self.lent_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn refused(&self, bytes: u64) {
        self.refused_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn listed_ahead(&self, bytes: u64) {
        self.listed_ahead_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn listing_used(&self, bytes: u64) {
        self.listing_used_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn backed(&self) {
        self.backed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn traced(&self, bytes: u64) {
        self.traced_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn trace_used(&self, bytes: u64) {
        self.trace_used_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn guessed(&self, bytes: u64) {
        self.guessed_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn guess_used(&self, bytes: u64) {
        self.guess_used_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}
