//! Counters of a cache: answers with and without the origin, and bytes by their source.

use crate::lease::LeaseState;

tombolo_core::counters! {
    /// Counters since the start.
    pub struct Counters;

    /// Counts of a cache's operations and bytes, as read at one time.
    pub struct Counts {
        /// Operations answered without the origin.
        hits,
        /// Operations that waited for the origin.
        misses,
        /// Bytes returned to readers.
        served_bytes,
        /// Bytes of `served_bytes` that were cached when requested.
        hit_bytes,
        /// Bytes read from the origin.
        fetched_bytes,
        /// Bytes of `fetched_bytes` that compression saved on the network.
        saved_bytes,
        /// Bytes borrowed from another cache.
        borrowed_bytes,
        /// Bytes lent to others.
        lent_bytes,
        /// Bytes from an intermediate cache, or from a local file to copy, that failed verification.
        refused_bytes,
        /// Bytes not read from the origin because a sidecar lists them as zero.
        zero_bytes,
        /// Fetched bytes of small files that were prefetched.
        guessed_bytes,
        /// Bytes of `guessed_bytes` in files that have been read since.
        guess_used_bytes,
        /// Fetched bytes that a trace had prefetched.
        traced_bytes,
        /// Bytes of `traced_bytes` that were read since.
        trace_used_bytes,
        /// Approximate size of prefetched listings, in bytes.
        listed_ahead_bytes,
        /// Bytes of `listed_ahead_bytes` that were used since.
        listing_used_bytes,
        /// Number of files passed to clients for reads that bypass the cache and its counters.
        backed,
        ;
        /// Bytes not read from the origin because another cached file has the same block.
        equal_bytes: u64,
        /// State of the lease of the tree, if one was taken.
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
