//! Live migration's dirty log, as a front end has it.

use super::{Driver, DriverQueue, GUEST_BASE};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use tombolo_mem::Region;

const FEATURE_LOG_ALL: u64 = 1 << 26;
const PAGE: u64 = 4096;

impl Driver {
    /// Shares a new dirty log, all clear. Nothing is marked any more in the one before when this returns;
    /// that is left in `self` if it fails.
    pub fn share_log(&mut self) -> io::Result<()> {
        let len = (GUEST_BASE + self.region().len() as u64).div_ceil(8 * PAGE);
        let file = memfd_create("tombolo-dirty", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, len)?;
        self.front.set_log(len, 0, file.as_fd())?;
        self.log = Some(Region::map(&file, 0, len as usize).map_err(io::Error::other)?);
        Ok(())
    }

    /// Switches logging under running queues (the first ones), as QEMU does when a migration begins and when
    /// it ends.
    pub fn set_logging(&mut self, is_on: bool, queues: &[&DriverQueue]) -> io::Result<()> {
        self.is_logging = is_on;
        let log = if is_on { FEATURE_LOG_ALL } else { 0 };
        self.front.post_u64(super::request::SET_FEATURES, self.features() | log)?;
        (0..).zip(queues).try_for_each(|(index, queue)| self.hand_over_addresses(index, queue))
    }

    /// What was marked until now. From now on another log is marked.
    pub fn take_dirty_pages(&mut self) -> io::Result<BTreeSet<u64>> {
        let before = self.log.clone();
        self.share_log()?;
        let new = std::mem::replace(&mut self.log, before);
        let marked = self.dirty_pages();
        self.log = new;
        Ok(marked)
    }

    /// The guest addresses of the pages that are marked in the log.
    pub fn dirty_pages(&self) -> BTreeSet<u64> {
        let mut bytes = vec![0; self.log.as_ref().map_or(0, Region::len)];
        // As long as the log.
        let _ = self.log.as_ref().map(|log| log.read_at(0, &mut bytes));
        let pages = (0u64..).zip(bytes).flat_map(|(byte, bits)| {
            (0..8).filter(move |bit| bits >> bit & 1 != 0).map(move |bit| (byte * 8 + bit) * PAGE)
        });
        pages.collect()
    }
}
