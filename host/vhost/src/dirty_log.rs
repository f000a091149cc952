//! Live migration's dirty log (the vhost-user specification, "Migration"): a bit for each page of the guest's
//! memory, in memory that the front end shares. The front end clears bits and copies their pages; we set a
//! page's bit after we have written there.
//!
//! A front end switches logging under running queues, and goes by our answer: what is written from then on
//! has to be found in the log that it has given last. Two sides write, and each takes the change in before
//! the message is answered:
//!
//! - What hands chains back reads the log under the queue's lock, and marks the chain's buffers and the used
//!   ring under the same lock. So a chain that is handed back after the change is marked wholly, whenever its
//!   data were written; one that was handed back before was written before the change.
//! - The queue's thread, which writes the used ring's flags and event index, is stopped before the change and
//!   started after it.
//!
//! Marks are ordered behind what they stand for (release): a front end that takes a bit (acquire) and copies
//! the page has it. A bit that is set already is set again, since the front end may just be taking it.

use super::device::ChainLimits;
use super::memory::GuestMemory;
use super::walk::DescriptorTable;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tombolo_mem::{MapError, OutOfBounds, Region};

/// What a bit stands for, whatever the guest's pages are ("Migration": `VHOST_LOG_PAGE`).
const PAGE_SHIFT: u32 = 12;

/// Bits for guest addresses up to 64 TiB.
const LEN_MAX: u64 = 1 << 31;

/// Why a log is not used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogError {
    /// It is longer than any guest's.
    #[error("a dirty log of {len} bytes; {LEN_MAX} are enough for every guest")]
    TooLong {
        /// In bytes.
        len: u64,
    },
    /// It cannot be mapped.
    #[error("a dirty log that cannot be mapped")]
    Map(#[from] MapError),
    /// The guest has memory, or a ring, that it has no bits for.
    #[error("a dirty log of {len} bytes has no bit for guest address {address:#x}")]
    TooShort {
        /// In bytes.
        len: usize,
        /// The last address that is wanted.
        address: u64,
    },
}

/// The log.
#[derive(Debug)]
pub(crate) struct DirtyLog(Region);

impl DirtyLog {
    /// Maps `len` bytes of the front end's file.
    pub(crate) fn map(file: &File, offset: u64, len: u64) -> Result<DirtyLog, LogError> {
        let fitting = usize::try_from(len).ok().filter(|_| len <= LEN_MAX);
        let fitting = fitting.ok_or(LogError::TooLong { len })?;
        Ok(DirtyLog(Region::map(file, offset, fitting)?))
    }

    /// Fails unless each address below `end` has its bit.
    pub(crate) fn check(&self, end: u64) -> Result<(), LogError> {
        let Some(address) = end.checked_sub(1) else { return Ok(()) };
        let is_inside = (address >> PAGE_SHIFT) / 8 < self.0.len() as u64;
        is_inside.then_some(()).ok_or(LogError::TooShort { len: self.0.len(), address })
    }

    /// Sets the bits of `len` bytes at a guest address. Fails where the log ends before.
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

/// The log as one queue writes to it.
#[derive(Debug)]
pub(crate) struct QueueLog {
    log: Arc<DirtyLog>,
    memory: Arc<GuestMemory>,
    limits: ChainLimits,
    /// The used ring in the guest's addresses, and its length.
    used: u64,
    used_len: u64,
}

impl QueueLog {
    /// Fails if the log has no bits for the used ring, which may lie anywhere in the guest's addresses.
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

    /// The device may have written all of a chain's writable buffers, however much it says. Where those are
    /// is read again: a driver leaves a chain's descriptors alone until it has it back, and one that does not
    /// loses marks for its own memory.
    pub(crate) fn chain(&self, table: &DescriptorTable, head: u16) {
        // Memory that is found has its bits: that was checked.
        let _ = table.walk_with(&self.memory, head, self.limits, |address, len| {
            let _ = self.log.mark(address, u64::from(len));
        });
    }

    /// Something in the used ring was written. A byte of the log stands for eight pages, so all of it costs
    /// no more than an entry.
    pub(crate) fn used_ring(&self) {
        // Checked when this was made.
        let _ = self.log.mark(self.used, self.used_len);
    }

    /// Whether the log's file was truncated while in use.
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
        fn exactly_the_pages_that_a_span_touches_are_marked(address in 0u64..40 << 12, len in 0u64..30 << 12) {
            let log = DirtyLog(Region::heap(16));
            log.mark(address, len).expect("inside");
            let touched = |page: &u64| len > 0 && page << 12 < address + len && (page + 1) << 12 > address;
            prop_assert_eq!(marked(&log), (0..128).filter(touched).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_page_that_the_log_has_no_bit_for_is_refused() {
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
