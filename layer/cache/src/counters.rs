//! Counters of a cache: answers with and without the origin, and bytes by their source.

use crate::lease::LeaseState;

tombolo_core::counters! {
    /// Counters since the start.
    pub struct Counters;

    /// Counts of a cache's operations and bytes, as read at one time.
    pub struct Counts {
        /// Metadata requests and opens answered at once from the cache.
        hits,
        /// Metadata requests and opens not answered at once, mostly because they waited for the origin.
        misses,
        /// Bytes returned to readers, without those read past the cache.
        served_bytes,
        /// Bytes of `served_bytes` that were cached when requested.
        hit_bytes,
        /// Bytes of data fetched from the origin.
        fetched_bytes,
        /// Bytes of `fetched_bytes` that compression saved on the network.
        saved_bytes,
        /// Bytes borrowed from another cache of the host, or received from a site cache.
        borrowed_bytes,
        /// Bytes lent to others.
        lent_bytes,
        /// Bytes from a site cache, from a local file to copy, or fetched, that failed verification.
        refused_bytes,
        /// Bytes not read from the origin because a sidecar lists them as zero.
        zero_bytes,
        /// Size of the small files prefetched on a guess, in bytes.
        guessed_bytes,
        /// Bytes of `guessed_bytes` in files that have been read since.
        guess_used_bytes,
        /// Bytes prefetched by traces.
        traced_bytes,
        /// Bytes of `traced_bytes` that have been read since.
        trace_used_bytes,
        /// Approximate size of the listings prefetched on a guess, in bytes.
        listed_ahead_bytes,
        /// Bytes of `listed_ahead_bytes` that have been used since.
        listing_used_bytes,
        /// Number of times that a file was passed to a client whose reads then bypass the cache and its
        /// counters.
        backed,
        ;
        /// Bytes not read from the origin because an equal block was cached.
        equal_bytes: u64,
        /// State of the lease of the tree, if the cache uses one.
        lease: Option<LeaseState>,
    }
}

impl Counters {
    pub(crate) fn served(&self, bytes: u64, was_here: bool) {
        self.served_bytes.add(bytes);
        if was_here {
            self.hit_bytes.add(bytes);
        }
    }
}
