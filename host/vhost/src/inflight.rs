//! In-flight tracking (vhost-user specification, "Inflight I/O tracking", split virtqueues): requests under
//! way are recorded in an area of memory that survives this process. The front end, or the keeper, passes the
//! area to the next back end, which performs the requests again. State of the device may follow the queues.

use std::cmp::Reverse;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error as ThisError;
use tombolo_mem::{MapError, OutOfBounds, Region};
use tombolo_sys::memfd::{self, Seals};

// Layout of a queue's part: a header, and an entry for each descriptor. Numbers are little-endian; those that
// must be consistent after a crash are stored in a single access.
const VERSION: usize = 8;
const DESCRIPTORS: usize = 10;
const LAST_HEAD: usize = 12;
const USED_INDEX: usize = 14;
const HEADER_LEN: usize = 16;

const ENTRY_LEN: usize = 16;
/// Offset of the in-flight flag, which has one byte followed by padding.
const IS_UNDER_WAY: usize = 0;
const NEXT: usize = 6;
const COUNTER: usize = 8;

/// Alignment of the queues' parts, so that they share no cache line.
const ALIGNMENT: usize = 64;

/// Error of an in-flight area.
#[derive(Debug, ThisError)]
pub(crate) enum AreaError {
    /// The area is too small for its queues, or for the device's part behind them.
    #[error("an in-flight area of {len} bytes is too small for {queues} queues of {size} entries")]
    TooShort {
        len: u64,
        queues: u16,
        /// Number of descriptors per queue.
        size: u16,
    },
    #[error("cannot create an in-flight area")]
    Create(#[source] io::Error),
    #[error("cannot map the in-flight area")]
    Map(#[from] MapError),
    /// The area is not aligned.
    #[error("the in-flight area is not aligned")]
    Bounds(#[from] OutOfBounds),
    /// The area has an unknown layout.
    #[error("unsupported in-flight area of version {version} with {descriptors} descriptors")]
    Layout {
        /// Version of the layout; only 1 is known.
        version: u16,
        /// Number of descriptors per queue.
        descriptors: u16,
    },
}

/// Returns the size of the queues' parts in bytes.
pub(crate) fn area_len(queues: u16, size: u16) -> usize {
    usize::from(queues) * part_len(size)
}

fn device_part_offset(queues: u16, size: u16) -> usize {
    area_len(queues, size).next_multiple_of(PAGE)
}

const PAGE: usize = 4096;

/// Returns the size of an area with `device_bytes` for the device.
pub(crate) fn whole_len(queues: u16, size: u16, device_bytes: usize) -> u64 {
    match device_bytes {
        0 => area_len(queues, size) as u64,
        bytes => device_part_offset(queues, size) as u64 + bytes as u64,
    }
}

fn part_len(size: u16) -> usize {
    (HEADER_LEN + usize::from(size) * ENTRY_LEN).next_multiple_of(ALIGNMENT)
}

/// Creates an area for the front end.
pub(crate) fn create(queues: u16, size: u16, device_bytes: usize) -> Result<File, AreaError> {
    let made = || -> Result<OwnedFd, io::Error> {
        let memory = memfd::create("vhost-inflight", whole_len(queues, size, device_bytes))?;
        memfd::seal(&memory, Seals::SHRINK | Seals::GROW)?;
        Ok(memory)
    };
    Ok(made().map_err(AreaError::Create)?.into())
}

/// Maps an area: one part per queue. An area of zeros is new.
pub(crate) fn open(
    file: &File,
    offset: u64,
    len: u64,
    queues: u16,
    size: u16,
) -> Result<Vec<InFlight>, AreaError> {
    let needed = area_len(queues, size);
    if usize::try_from(len).map_or(true, |len| len < needed) {
        return Err(AreaError::TooShort { len, queues, size });
    }
    let region = Region::map(file, offset, needed)?;
    (0..usize::from(queues))
        .map(|queue| InFlight::open(region.clone(), queue * part_len(size), size))
        .collect()
}

pub(crate) fn open_device_part(
    file: &File,
    given: (u64, u64),
    queues: u16,
    size: u16,
    device_bytes: usize,
) -> Result<Region, AreaError> {
    let (offset, len) = given;
    if len < whole_len(queues, size, device_bytes) {
        return Err(AreaError::TooShort { len, queues, size });
    }
    let offset = offset.saturating_add(device_part_offset(queues, size) as u64);
    Ok(Region::map(file, offset, device_bytes)?)
}

/// A queue's part of the area. Each access is checked, because the front end may write anything to it.
#[derive(Debug)]
pub(crate) struct InFlight {
    region: Region,
    offset: usize,
    size: u16,
    /// Order number of the next request to be taken, greater than those of all requests under way.
    taken: AtomicU64,
}

impl InFlight {
    fn open(region: Region, offset: usize, size: u16) -> Result<InFlight, AreaError> {
        let part = InFlight { region, offset, size, taken: AtomicU64::new(0) };
        match (part.load(VERSION)?, part.load(DESCRIPTORS)?) {
            (0, _) => {
                part.store(DESCRIPTORS, size)?;
                part.store(VERSION, 1)?;
            }
            (1, descriptors) if descriptors == size => {}
            (version, descriptors) => return Err(AreaError::Layout { version, descriptors }),
        }
        Ok(part)
    }

    /// Returns the requests that an earlier back end left under way, the latest first. `used` and `available`
    /// are the indices in guest memory. If they cannot belong to the rings that the earlier back end served,
    /// the guest has been reset and waits for none of the requests.
    pub(crate) fn recover(&self, used: u16, available: u16) -> Result<Vec<u16>, OutOfBounds> {
        match used.wrapping_sub(self.load(USED_INDEX)?) {
            0 => {}
            // The process ended after it moved the used index and before it recorded that: the chain has been
            // returned.
            1 => {
                let head = self.load(LAST_HEAD)?;
                if head < self.size {
                    self.store(entry(head) + IS_UNDER_WAY, 0)?;
                }
                self.store(USED_INDEX, used)?;
            }
            _ => return self.clear(used),
        }
        let found = self.resume()?;
        if found.len() > usize::from(available.wrapping_sub(used)) { self.clear(used) } else { Ok(found) }
    }

    /// Returns the requests under way, the latest first. Requests taken from now on are recorded as later
    /// than these.
    pub(crate) fn resume(&self) -> Result<Vec<u16>, OutOfBounds> {
        let mut found = Vec::new();
        for head in 0..self.size {
            if self.load(entry(head) + IS_UNDER_WAY)? & 0xFF != 0 {
                let counter = self.region.load_u64(self.offset + entry(head) + COUNTER, Ordering::Acquire)?;
                found.push((u64::from_le(counter), head));
            }
        }
        found.sort_unstable_by_key(|&it| Reverse(it));
        let latest = found.first().map_or(0, |(counter, _)| counter.wrapping_add(1));
        self.taken.store(latest, Ordering::Relaxed);
        Ok(found.into_iter().map(|(_, head)| head).collect())
    }

    /// Marks all requests as returned, because the guest waits for none of them; `used` is its used index.
    /// Returns the requests under way, which are then none.
    pub(crate) fn clear(&self, used: u16) -> Result<Vec<u16>, OutOfBounds> {
        (0..self.size).try_for_each(|head| self.store(entry(head) + IS_UNDER_WAY, 0))?;
        self.store(USED_INDEX, used)?;
        Ok(Vec::new())
    }

    /// Records that a chain is taken, before it is handled.
    pub(crate) fn take(&self, head: u16) -> Result<(), OutOfBounds> {
        let counter = self.taken.fetch_add(1, Ordering::Relaxed);
        self.region.store_u64(self.offset + entry(head) + COUNTER, counter.to_le(), Ordering::Relaxed)?;
        self.store(entry(head) + IS_UNDER_WAY, 1)
    }

    /// Records that a chain is about to be returned: its used entry is written, but the index not yet moved.
    pub(crate) fn start_return(&self, head: u16) -> Result<(), OutOfBounds> {
        self.store(entry(head) + NEXT, self.load(LAST_HEAD)?)?;
        self.store(LAST_HEAD, head)
    }

    /// Records that the used index has moved past the chain, to `used`.
    pub(crate) fn finish_return(&self, head: u16, used: u16) -> Result<(), OutOfBounds> {
        self.store(entry(head) + IS_UNDER_WAY, 0)?;
        self.store(USED_INDEX, used)
    }

    fn load(&self, field: usize) -> Result<u16, OutOfBounds> {
        self.region.load_u16(self.offset + field, Ordering::Acquire).map(u16::from_le)
    }

    /// Stores a number in program order: a killed process leaves the stores before its death, and none after.
    fn store(&self, field: usize, value: u16) -> Result<(), OutOfBounds> {
        self.region.store_u16(self.offset + field, value.to_le(), Ordering::Release)
    }
}

fn entry(head: u16) -> usize {
    HEADER_LEN + usize::from(head) * ENTRY_LEN
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(area: &File, size: u16) -> InFlight {
        open(area, 0, area_len(2, size) as u64, 2, size).expect("an area").remove(1)
    }

    #[test]
    fn unreturned_chains_are_recovered_latest_first() {
        let area = create(2, 8, 0).expect("memory");
        let first = part(&area, 8);
        assert!(first.recover(100, 100).expect("inside").is_empty());
        for head in [5, 2, 7, 0] {
            first.take(head).expect("inside");
        }
        first.start_return(2).expect("inside");
        first.finish_return(2, 101).expect("inside");
        let second = part(&area, 8);
        assert_eq!(second.recover(101, 104).expect("inside"), [0, 7, 5]);
        // Chains taken from now on are later than those.
        second.take(2).expect("inside");
        assert_eq!(part(&area, 8).recover(101, 105).expect("inside"), [2, 0, 7, 5]);
    }

    #[test]
    fn chain_returned_before_kill_is_not_recovered() {
        for is_published in [false, true] {
            let area = create(2, 8, 0).expect("memory");
            let first = part(&area, 8);
            first.recover(3, 3).expect("inside");
            first.take(5).expect("inside");
            first.start_return(5).expect("inside");
            // The process ends here, with the used index moved or not.
            let (used, left): (u16, &[u16]) = if is_published { (4, &[]) } else { (3, &[5]) };
            assert_eq!(part(&area, 8).recover(used, 4).expect("inside"), left);
        }
    }

    #[test]
    fn forged_area_is_refused_or_stays_in_bounds() {
        let area = create(2, 8, 0).expect("memory");
        assert!(matches!(open(&area, 0, 16, 2, 8), Err(AreaError::TooShort { .. })));
        assert!(matches!(open(&area, 0, 1 << 40, 2, 64), Err(AreaError::Map(_))));
        part(&area, 8);
        assert!(matches!(open(&area, 0, area_len(2, 4) as u64, 2, 4), Err(AreaError::Layout { .. })));
        let lying = part(&area, 8);
        lying.region.write_at(lying.offset + LAST_HEAD, &[0xFF; 4 + 8 * ENTRY_LEN]).expect("inside");
        assert_eq!(lying.recover(0xFFFF, 7).expect("inside").len(), 8);
    }

    #[test]
    fn other_rings_recover_nothing() {
        for (used, available) in [(0, 0), (0, 8), (9, 17), (13, 17), (11, 11), (11, 12)] {
            let area = create(2, 8, 0).expect("memory");
            let first = part(&area, 8);
            first.recover(10, 10).expect("inside");
            for head in [5, 2, 7] {
                first.take(head).expect("inside");
            }
            first.start_return(5).expect("inside");
            first.finish_return(5, 11).expect("inside");
            let second = part(&area, 8);
            assert!(second.recover(used, available).expect("inside").is_empty(), "{used} {available}");
            // Nor are they found later.
            assert!(part(&area, 8).recover(used, used.wrapping_add(8)).expect("inside").is_empty());
        }
    }
}
