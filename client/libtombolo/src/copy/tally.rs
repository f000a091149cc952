//! Counters of a copy.

tombolo_core::counters! {
    pub(super) struct Counters;

    /// Progress of a copy.
    pub struct Tally {
        /// Regular files that were copied, hard links among them.
        files,
        /// Directories that were created or entered.
        directories,
        /// Symbolic links, pipes, sockets and devices that were created.
        others,
        /// Files that were skipped because they exist already.
        skipped,
        /// Number of failures.
        failed,
        /// Parts that were left for a later copy.
        parts_kept,
        /// Bytes of file data that are done: copied, or known to be zero or present already.
        size_bytes,
        /// The part of `size_bytes` that was written.
        written_bytes,
        /// Bytes of all regular files found so far.
        met_bytes,
        /// Number of all files and links found so far.
        met_files,
    }
}

impl Counters {
    pub fn wrote(&self, count: usize) {
        self.written_bytes.add_len(count);
        self.size_bytes.add_len(count);
    }

    /// Counts data that needed no write.
    pub fn passed(&self, count: u64) {
        self.size_bytes.add(count);
    }
}
