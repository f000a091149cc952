//! Live migration's dirty log (vhost-user specification, "Migration"): one bit per page of guest memory, in
//! memory shared by the front end. The front end clears bits and copies their pages; the back end sets a
//! page's bit after writing to it.
//!
//! A front end switches logging of running queues and relies on the reply: later writes must be found in the
//! latest log. There are two writers, and both adopt the change before the message is answered:
//!
//! - Threads that return chains read the log under the queue's lock, and mark the chain's buffers and the
//!   used ring under the same lock. A chain returned after the change is marked completely, whenever its data
//!   was written; a chain returned earlier was written before the change.
//! - The queue's thread, which writes the used ring's flags and event index, is stopped before the change and
//!   started after it.
//!
//! Marks are ordered after the writes that they report (release): a front end that clears a bit (acquire) and
//! then copies the page copies the write. A bit that is already set is set again, because the front end may
//! be clearing it.

use super::device::ChainLimits;
use super::memory::GuestMemory;
use super::walk::DescriptorTable;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tombolo_mem::{MapError, OutOfBounds, Region};

/// Granularity of the log, whatever the guest's page size ("Migration": `VHOST_LOG_PAGE`).
const PAGE_SHIFT: u32 = 12;

/// Maximum length of a log: bits for guest addresses up to 64 TiB.
const LEN_MAX: u64 = 1 << 31;

/// Error of a dirty log.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogError {
    /// The log is longer than any guest needs.
    #[error("a dirty log of {len} bytes exceeds the limit of {LEN_MAX}")]
    TooLong {
        /// Length in bytes.
        len: u64,
    },
    #[error("cannot map the dirty log")]
    Map(#[from] MapError),
    /// The log lacks bits for the guest's memory or for a ring.
    #[error("a dirty log of {len} bytes has no bit for guest address {address:#x}")]
    TooShort {
        /// Length in bytes.
        len: usize,
        /// The last address that needs a bit.
        address: u64,
    },
}

#[derive(Debug)]
pub(crate) struct DirtyLog(Region);

impl DirtyLog {
    pub(crate) fn map(file: &File, offset: u64, len: u64) -> Result<DirtyLog, LogError> {
        let fitting = usize::try_from(len).ok().filter(|_| len <= LEN_MAX);
        let fitting = fitting.ok_or(LogError::TooLong { len })?;
        Ok(DirtyLog(Region::map(file, offset, fitting)?))
    }

    /// Fails unless each address below `end` has a bit.
    pub(crate) fn check(&self, end: u64) -> Result<(), LogError> {
        let Some(address) = end.checked_sub(1) else { return Ok(()) };
        let is_inside = (address >> PAGE_SHIFT) / 8 < self.0.len() as u64;
        is_inside.then_some(()).ok_or(LogError::TooShort { len: self.0.len(), address })
    }

    /// Sets the bits of `len` bytes at a guest address. Fails if the log is too short.
    pub(crate) fn mark(&self, address: u64, len: u64) -> Result<(), OutOfBounds> {
        let Some(more) = len.checked_sub(1) else { return Ok(()) };
        let (first, last) = (address >> PAGE_SHIFT, address.saturating_add(more) >> PAGE_SHIFT);
        for byte in first / 8..=last / 8 {
            let from = first.saturating_sub(byte * 8).min(7);
            let to = (last - byte * 8).min(7);
            let bits = (0xFF << from) & (0xFF >> (7 - to));
            self.0.set_bits(usize::try_from(byte).unwrap_or(usize::MAX), bits, Ordering::Release)?;
        }
        Ok(())
    }
}

/// A dirty log as used by one queue.
#[derive(Debug)]
pub(crate) struct QueueLog {
    log: Arc<DirtyLog>,
    memory: Arc<GuestMemory>,
    limits: ChainLimits,
    /// Address and length of the used ring, as the log counts addresses; in bytes.
    used: u64,
    used_len: u64,
}

impl QueueLog {
    /// Fails if the log lacks bits for the used ring, whose address in the log is given by the front end and
    /// may be outside of the guest's memory.
    pub(crate) fn new(
        log: Arc<DirtyLog>,
        memory: Arc<GuestMemory>,
        limits: ChainLimits,
        used: u64,
        used_len: u64,
    ) -> Result<QueueLog, LogError> {
        log.check(used.saturating_add(used_len))?;
        Ok(QueueLog { log, memory, limits, used, used_len })
    }

    /// Marks all writable buffers of a chain, because the device may have written more than it reported. The
    /// descriptors are read again: a driver leaves them unchanged until the chain is returned; otherwise it
    /// loses marks of its own memory.
    pub(crate) fn chain(&self, table: &DescriptorTable, head: u16) {
        // `DirtyLog::check` has ensured that the log has bits for all guest memory.
        let _ = table.walk_with(&self.memory, head, self.limits, |address, len| {
            let _ = self.log.mark(address, u64::from(len));
        });
    }

    /// Marks the used ring. One byte of the log covers eight pages, so marking the whole ring costs little
    /// more than marking one entry.
    pub(crate) fn used_ring(&self) {
        // The range was checked in `new`.
        let _ = self.log.mark(self.used, self.used_len);
    }

    /// Returns `true` if the log's file was truncated while in use.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.log.0.is_poisoned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn marked(log: &DirtyLog) -> Vec<u64> {
        let mut bytes = vec![0; log.0.len()];
        log.0.read_at(0, &mut bytes).expect("inside");
        (0..bytes.len() as u64 * 8).filter(|page| bytes[(page / 8) as usize] >> (page % 8) & 1 != 0).collect()
    }

    proptest! {
        #[test]
        fn span_marks_exactly_its_pages(address in 0u64..40 << 12, len in 0u64..30 << 12) {
            let log = DirtyLog(Region::heap(16));
            log.mark(address, len).expect("inside");
            let touched = |page: &u64| len > 0 && page << 12 < address + len && (page + 1) << 12 > address;
            prop_assert_eq!(marked(&log), (0..128).filter(touched).collect::<Vec<_>>());
        }
    }

    #[test]
    fn page_without_log_bit_is_refused() {
        let log = DirtyLog(Region::heap(2));
        assert!(log.check(0).is_ok() && log.check(16 << 12).is_ok());
        for end in [(16 << 12) + 1, 1 << 40, u64::MAX] {
            assert!(matches!(log.check(end), Err(LogError::TooShort { .. })), "{end:#x}");
        }
        for (address, len) in [(16 << 12, 1), ((15 << 12) + 1, 4096), (u64::MAX, 1), (u64::MAX, u64::MAX)] {
            assert!(log.mark(address, len).is_err(), "{address:#x}, {len}");
        }
    }
}
