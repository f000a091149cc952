//! Live migration's dirty log on the front end's side.

use super::{Driver, DriverQueue, GUEST_BASE};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use tombolo_mem::Region;

const FEATURE_LOG_ALL: u64 = 1 << 26;
const PAGE: u64 = 4096;

impl Driver {
    /// Shares a new, clear dirty log. When this returns, the previous one is no longer marked; on failure it
    /// stays in `self`.
    pub fn share_log(&mut self) -> io::Result<()> {
        let len = (GUEST_BASE + self.region().len() as u64).div_ceil(8 * PAGE);
        let file = memfd_create("tombolo-dirty", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, len)?;
        self.front.set_log(len, 0, file.as_fd())?;
        self.log = Some(Region::map(&file, 0, len as usize).map_err(io::Error::other)?);
        Ok(())
    }

    /// Switches logging while the first queues run, as QEMU does at the beginning and end of a migration.
    pub fn set_logging(&mut self, is_on: bool, queues: &[&DriverQueue]) -> io::Result<()> {
        self.is_logging = is_on;
        let log = if is_on { FEATURE_LOG_ALL } else { 0 };
        self.front.post_u64(super::request::SET_FEATURES, self.features() | log)?;
        (0..).zip(queues).try_for_each(|(index, queue)| self.hand_over_addresses(index, queue))
    }

    /// Returns the pages marked so far, and starts another log.
    pub fn take_dirty_pages(&mut self) -> io::Result<BTreeSet<u64>> {
        let before = self.log.clone();
        self.share_log()?;
        let new = std::mem::replace(&mut self.log, before);
        let marked = self.dirty_pages();
        self.log = new;
        Ok(marked)
    }

    /// Returns the guest addresses of the marked pages.
    pub fn dirty_pages(&self) -> BTreeSet<u64> {
        let mut bytes = vec![0; self.log.as_ref().map_or(0, Region::len)];
        // The buffer has the length of the log.
        let _ = self.log.as_ref().map(|log| log.read_at(0, &mut bytes));
        let pages = (0u64..).zip(bytes).flat_map(|(byte, bits)| {
            (0..8).filter(move |bit| bits >> bit & 1 != 0).map(move |bit| (byte * 8 + bit) * PAGE)
        });
        pages.collect()
    }
}
