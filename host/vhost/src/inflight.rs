//! Requests under way, written down in memory that outlives this process (the vhost-user specification,
//! "Inflight I/O tracking", split virtqueues): the front end keeps the area and hands it to the next back
//! end, which performs them again.

use std::cmp::Reverse;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error as ThisError;
use tombolo_mem::{MapError, OutOfBounds, Region};
use tombolo_sys::memfd::{self, Seals};

// A queue's part: a header, and an entry for each descriptor. Little-endian numbers, of which those that both
// sides of a crash have to see whole are stored in one access.
const VERSION: usize = 8;
const DESCRIPTORS: usize = 10;
const LAST_HEAD: usize = 12;
const USED_INDEX: usize = 14;
const HEADER_LEN: usize = 16;

const ENTRY_LEN: usize = 16;
/// A byte with padding behind it.
const IS_UNDER_WAY: usize = 0;
const NEXT: usize = 6;
const COUNTER: usize = 8;

/// Queues' parts begin at multiples of this, so that they share no cache line.
const ALIGNMENT: usize = 64;

/// Why an area is not used.
#[derive(Debug, ThisError)]
pub(crate) enum AreaError {
    /// It is smaller than its queues need.
    #[error("an in-flight area of {len} bytes for {queues} queues of {size} entries")]
    TooShort {
        /// Its length, in bytes.
        len: u64,
        /// Queues.
        queues: u16,
        /// Descriptors of each.
        size: u16,
    },
    /// It cannot be made.
    #[error("no memory for an in-flight area")]
    Create(#[source] io::Error),
    /// It cannot be mapped.
    #[error("an in-flight area that cannot be mapped")]
    Map(#[from] MapError),
    /// Its memory is not what it should be.
    #[error("an in-flight area that is not aligned")]
    Bounds(#[from] OutOfBounds),
    /// It was made by something else.
    #[error("an in-flight area of version {version} with {descriptors} descriptors")]
    Layout {
        /// Of the layout; 1 is the only one.
        version: u16,
        /// How many a queue has.
        descriptors: u16,
    },
}

/// How many bytes the queues' parts of an area take.
pub(crate) fn area_len(queues: u16, size: u16) -> usize {
    usize::from(queues) * part_len(size)
}

/// Where in an area the part begins that its device has, if it wants one.
fn kept_offset(queues: u16, size: u16) -> usize {
    area_len(queues, size).next_multiple_of(PAGE)
}

const PAGE: usize = 4096;

/// The length of an area in which the device has so many bytes.
pub(crate) fn whole_len(queues: u16, size: u16, kept_bytes: usize) -> u64 {
    match kept_bytes {
        0 => area_len(queues, size) as u64,
        bytes => kept_offset(queues, size) as u64 + bytes as u64,
    }
}

fn part_len(size: u16) -> usize {
    (HEADER_LEN + usize::from(size) * ENTRY_LEN).next_multiple_of(ALIGNMENT)
}

/// A new area, to be handed to the front end.
pub(crate) fn create(queues: u16, size: u16, kept_bytes: usize) -> Result<File, AreaError> {
    let made = || -> Result<OwnedFd, io::Error> {
        let memory = memfd::create("vhost-inflight", whole_len(queues, size, kept_bytes))?;
        memfd::seal(&memory, Seals::SHRINK | Seals::GROW)?;
        Ok(memory)
    };
    Ok(made().map_err(AreaError::Create)?.into())
}

/// Maps an area: a part for each queue. One that is all zeroes is new.
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

/// Maps the part of an area that its device has.
pub(crate) fn open_kept(
    file: &File,
    given: (u64, u64),
    queues: u16,
    size: u16,
    kept_bytes: usize,
) -> Result<Region, AreaError> {
    let (offset, len) = given;
    if len < whole_len(queues, size, kept_bytes) {
        return Err(AreaError::TooShort { len, queues, size });
    }
    let offset = offset.saturating_add(kept_offset(queues, size) as u64);
    Ok(Region::map(file, offset, kept_bytes)?)
}

/// One queue's part of the area. The front end may write there whatever it likes: each access is checked.
#[derive(Debug)]
pub(crate) struct InFlight {
    region: Region,
    offset: usize,
    size: u16,
    /// Requests that were taken: tells in which order they came.
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

    /// What an earlier back end has left under way, the latest first. The indices are those in the guest's
    /// memory. If they cannot be those of the rings that it has served, the guest was reset since and waits
    /// for nothing of that.
    pub(crate) fn recover(&self, used: u16, available: u16) -> Result<Vec<u16>, OutOfBounds> {
        match used.wrapping_sub(self.load(USED_INDEX)?) {
            0 => {}
            // It ended between the used ring's index and its own note of it: that chain was handed back.
            1 => {
                let head = self.load(LAST_HEAD)?;
                if head < self.size {
                    self.store(entry(head) + IS_UNDER_WAY, 0)?;
                }
                self.store(USED_INDEX, used)?;
            }
            _ => return self.forget(used),
        }
        let found = self.go_on()?;
        if found.len() > usize::from(available.wrapping_sub(used)) { self.forget(used) } else { Ok(found) }
    }

    /// What is under way, the latest first. What is taken from now on is later than that.
    pub(crate) fn go_on(&self) -> Result<Vec<u16>, OutOfBounds> {
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

    /// The guest waits for nothing that was taken until now, and its used index stands there: nothing is
    /// under way.
    pub(crate) fn forget(&self, used: u16) -> Result<Vec<u16>, OutOfBounds> {
        (0..self.size).try_for_each(|head| self.store(entry(head) + IS_UNDER_WAY, 0))?;
        self.store(USED_INDEX, used)?;
        Ok(Vec::new())
    }

    /// A chain is taken. Said before anything is done for it.
    pub(crate) fn take(&self, head: u16) -> Result<(), OutOfBounds> {
        let counter = self.taken.fetch_add(1, Ordering::Relaxed);
        self.region.store_u64(self.offset + entry(head) + COUNTER, counter.to_le(), Ordering::Relaxed)?;
        self.store(entry(head) + IS_UNDER_WAY, 1)
    }

    /// A chain is about to be handed back: its entry is in the used ring, whose index is not moved yet.
    pub(crate) fn hand_back(&self, head: u16) -> Result<(), OutOfBounds> {
        self.store(entry(head) + NEXT, self.load(LAST_HEAD)?)?;
        self.store(LAST_HEAD, head)
    }

    /// The used ring's index was moved past it, to this.
    pub(crate) fn handed_back(&self, head: u16, used: u16) -> Result<(), OutOfBounds> {
        self.store(entry(head) + IS_UNDER_WAY, 0)?;
        self.store(USED_INDEX, used)
    }

    fn load(&self, field: usize) -> Result<u16, OutOfBounds> {
        self.region.load_u16(self.offset + field, Ordering::Acquire).map(u16::from_le)
    }

    /// In program order, which is what a process that is killed leaves.
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
    fn what_was_taken_and_not_handed_back_is_found_latest_first() {
        let area = create(2, 8, 0).expect("memory");
        let first = part(&area, 8);
        assert!(first.recover(100, 100).expect("inside").is_empty());
        for head in [5, 2, 7, 0] {
            first.take(head).expect("inside");
        }
        first.hand_back(2).expect("inside");
        first.handed_back(2, 101).expect("inside");
        let second = part(&area, 8);
        assert_eq!(second.recover(101, 104).expect("inside"), [0, 7, 5]);
        // What is taken from now on is later than all of those.
        second.take(2).expect("inside");
        assert_eq!(part(&area, 8).recover(101, 105).expect("inside"), [2, 0, 7, 5]);
    }

    #[test]
    fn a_chain_that_was_handed_back_just_before_the_end_is_not_under_way() {
        for is_published in [false, true] {
            let area = create(2, 8, 0).expect("memory");
            let first = part(&area, 8);
            first.recover(3, 3).expect("inside");
            first.take(5).expect("inside");
            first.hand_back(5).expect("inside");
            // Here it ends: with the used index moved or not.
            let (used, left): (u16, &[u16]) = if is_published { (4, &[]) } else { (3, &[5]) };
            assert_eq!(part(&area, 8).recover(used, 4).expect("inside"), left);
        }
    }

    #[test]
    fn an_area_that_lies_is_refused_or_names_descriptors_of_the_queue_alone() {
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
    fn of_other_rings_nothing_is_under_way() {
        for (used, available) in [(0, 0), (0, 8), (9, 17), (13, 17), (11, 11), (11, 12)] {
            let area = create(2, 8, 0).expect("memory");
            let first = part(&area, 8);
            first.recover(10, 10).expect("inside");
            for head in [5, 2, 7] {
                first.take(head).expect("inside");
            }
            first.hand_back(5).expect("inside");
            first.handed_back(5, 11).expect("inside");
            let second = part(&area, 8);
            assert!(second.recover(used, available).expect("inside").is_empty(), "{used} {available}");
            // Nor is it found later.
            assert!(part(&area, 8).recover(used, used.wrapping_add(8)).expect("inside").is_empty());
        }
    }
}
