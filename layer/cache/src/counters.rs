//! Counters of a cache: answers with and without the origin, and bytes by their source.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::lease::LeaseState;

/// Counters since the start.
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
    /// Counter shared with the sidecars' entries ([`Advice`](crate::images::Advice)), which increment it.
    pub(crate) zero_bytes: Arc<AtomicU64>,
    guessed_bytes: AtomicU64,
    guess_used_bytes: AtomicU64,
    traced_bytes: AtomicU64,
    trace_used_bytes: AtomicU64,
    listed_ahead_bytes: AtomicU64,
    listing_used_bytes: AtomicU64,
    backed: AtomicU64,
}

/// Counts of a cache's operations and bytes, as read at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Metadata requests and opens answered at once from the cache.
    pub hits: u64,
    /// Metadata requests and opens not answered at once, mostly because they waited for the origin.
    pub misses: u64,
    /// Bytes returned to readers, without those read past the cache.
    pub served_bytes: u64,
    /// Bytes of `served_bytes` that were cached when requested.
    pub hit_bytes: u64,
    /// Bytes of data fetched from the origin.
    pub fetched_bytes: u64,
    /// Bytes of `fetched_bytes` that compression saved on the network.
    pub saved_bytes: u64,
    /// Bytes borrowed from another cache of the host, or received from a site cache.
    pub borrowed_bytes: u64,
    /// Bytes lent to others.
    pub lent_bytes: u64,
    /// Bytes from a site cache, from a local file to copy, or fetched, that failed verification.
    pub refused_bytes: u64,
    /// Bytes not read from the origin because a sidecar lists them as zero.
    pub zero_bytes: u64,
    /// Bytes not read from the origin because another cached file has the same block.
    pub equal_bytes: u64,
    /// Size of the small files prefetched on a guess, in bytes.
    pub guessed_bytes: u64,
    /// Bytes of `guessed_bytes` in files that have been read since.
    pub guess_used_bytes: u64,
    /// Bytes prefetched by traces.
    pub traced_bytes: u64,
    /// Bytes of `traced_bytes` that have been read since.
    pub trace_used_bytes: u64,
    /// Approximate size of the listings prefetched on a guess, in bytes.
    pub listed_ahead_bytes: u64,
    /// Bytes of `listed_ahead_bytes` that have been used since.
    pub listing_used_bytes: u64,
    /// State of the lease of the tree, if the cache uses one.
    pub lease: Option<LeaseState>,
    /// Number of times that a file was passed to a client whose reads then bypass the cache and its counters.
    pub backed: u64,
}

impl Counters {
    /// Returns the current values, without `equal_bytes` and `lease`, which the export adds.
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
