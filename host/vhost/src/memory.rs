//! A guest's memory, as mapped in this process.

use super::fault::QueueFault;
use tombolo_mem::{OutOfBounds, Region, Sink, Source};

/// Maximum number of memory slots of a guest.
pub const MEMORY_SLOTS_MAX: usize = 64;

/// A contiguous span of a guest's memory.
#[derive(Debug, Clone)]
pub struct MemorySlot {
    /// Guest-physical address of the first byte.
    pub guest_address: u64,
    /// Address in the front end's address space, by which rings are addressed.
    pub user_address: u64,
    /// Mapping of the span in this process.
    pub region: Region,
}

/// Error of a guest's memory table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// Two slots share an address, in the guest or in the front end.
    #[error("two memory slots overlap at {address:#x}")]
    Overlap {
        /// First shared address.
        address: u64,
    },
    /// A slot is empty or exceeds the address space.
    #[error("the memory slot at {address:#x} is empty or wraps around")]
    Span {
        /// First address.
        address: u64,
    },
    /// More slots than [`MEMORY_SLOTS_MAX`].
    #[error("more than {MEMORY_SLOTS_MAX} memory slots")]
    TooMany,
}

/// A guest's memory: mapping of guest-physical addresses to regions. Immutable; a new table replaces it.
#[derive(Debug, Clone, Default)]
pub struct GuestMemory {
    /// Sorted by guest address.
    slots: Vec<MemorySlot>,
}

impl GuestMemory {
    /// Checks the slots and creates a table.
    pub fn new(mut slots: Vec<MemorySlot>) -> Result<GuestMemory, MemoryError> {
        if slots.len() > MEMORY_SLOTS_MAX {
            return Err(MemoryError::TooMany);
        }
        slots.sort_by_key(|slot| slot.user_address);
        check_apart(&slots, |slot| slot.user_address)?;
        slots.sort_by_key(|slot| slot.guest_address);
        check_apart(&slots, |slot| slot.guest_address)?;
        Ok(GuestMemory { slots })
    }

    /// Returns the slots, sorted by guest address.
    pub fn slots(&self) -> &[MemorySlot] {
        &self.slots
    }

    /// Returns the end of the highest slot.
    pub(crate) fn end(&self) -> u64 {
        self.slots.last().map_or(0, |slot| slot.guest_address + slot.region.len() as u64)
    }

    /// Translates a front-end address to a guest address; `None` outside of the guest's memory.
    pub(crate) fn guest_address(&self, user_address: u64) -> Option<u64> {
        self.slots.iter().find_map(|slot| {
            let offset = user_address.checked_sub(slot.user_address)?;
            (offset < slot.region.len() as u64).then_some(slot.guest_address + offset)
        })
    }

    /// Returns `true` if a slot's file was truncated while in use.
    pub fn is_poisoned(&self) -> bool {
        self.slots.iter().any(|slot| slot.region.is_poisoned())
    }

    /// Appends a guest buffer, which may cross slots, to the source. Fails unless all of it is in the
    /// guest's memory.
    pub fn readable(&self, address: u64, len: u32, source: &mut Source) -> Result<(), QueueFault> {
        self.resolve(address, len, |region, offset, len| source.push(region, offset, len))
    }

    /// Appends a guest buffer to the sink, as [`readable`](Self::readable) does to a source.
    pub fn writable(&self, address: u64, len: u32, sink: &mut Sink) -> Result<(), QueueFault> {
        self.resolve(address, len, |region, offset, len| sink.push(region, offset, len))
    }

    /// Returns region and offset of `len` bytes at a front-end address; `None` unless they are in one slot.
    pub fn ring(&self, user_address: u64, len: usize) -> Option<(Region, usize)> {
        self.slots.iter().find_map(|slot| {
            let offset = usize::try_from(user_address.checked_sub(slot.user_address)?).ok()?;
            let end = offset.checked_add(len)?;
            (end <= slot.region.len()).then(|| (slot.region.clone(), offset))
        })
    }

    /// Calls `each` for the consecutive pieces of a guest buffer, which may cross slots.
    #[inline]
    fn resolve(
        &self,
        address: u64,
        len: u32,
        mut each: impl FnMut(&Region, usize, usize) -> Result<(), OutOfBounds>,
    ) -> Result<(), QueueFault> {
        let outside = || QueueFault::OutsideMemory { address, len };
        let mut at = address;
        let mut remaining = len as usize;
        let first = self.slots.partition_point(|slot| slot.guest_address <= address).checked_sub(1);
        let slots = first.and_then(|first| self.slots.get(first..)).ok_or_else(outside)?;
        for slot in slots {
            let offset = at.checked_sub(slot.guest_address).and_then(|offset| usize::try_from(offset).ok());
            let offset = offset.filter(|offset| *offset < slot.region.len()).ok_or_else(outside)?;
            let n = remaining.min(slot.region.len() - offset);
            each(&slot.region, offset, n)?;
            remaining -= n;
            if remaining == 0 {
                return Ok(());
            }
            at = at.checked_add(n as u64).ok_or_else(outside)?;
        }
        Err(outside())
    }
}

fn check_apart(sorted: &[MemorySlot], address: impl Fn(&MemorySlot) -> u64) -> Result<(), MemoryError> {
    let mut free_from = 0;
    for slot in sorted {
        let address = address(slot);
        if address < free_from {
            return Err(MemoryError::Overlap { address });
        }
        let len = slot.region.len() as u64;
        free_from = address.checked_add(len).filter(|_| len > 0).ok_or(MemoryError::Span { address })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(guest_address: u64, user_address: u64, len: usize) -> MemorySlot {
        MemorySlot { guest_address, user_address, region: Region::heap(len) }
    }

    #[test]
    fn spans_that_overlap_or_wrap_are_refused() {
        let overlap = GuestMemory::new(vec![slot(0, 0, 100), slot(99, 1000, 1)]).unwrap_err();
        assert_eq!(overlap, MemoryError::Overlap { address: 99 });
        let overlap = GuestMemory::new(vec![slot(0, 500, 100), slot(1000, 599, 1)]).unwrap_err();
        assert_eq!(overlap, MemoryError::Overlap { address: 599 });
        let wraps = GuestMemory::new(vec![slot(u64::MAX - 5, 0, 10)]).unwrap_err();
        assert_eq!(wraps, MemoryError::Span { address: u64::MAX - 5 });
        let many = (0..=MEMORY_SLOTS_MAX as u64).map(|i| slot(i * 10, i * 10, 10)).collect();
        assert_eq!(GuestMemory::new(many).unwrap_err(), MemoryError::TooMany);
        assert!(GuestMemory::new(vec![slot(0, 0, 100), slot(100, 100, 1)]).is_ok());
    }

    #[test]
    fn buffer_may_cross_slots_but_not_holes() {
        let memory = GuestMemory::new(vec![slot(0, 0, 100), slot(100, 200, 50), slot(160, 400, 50)]).unwrap();
        let mut sink = Sink::new();
        memory.writable(90, 60, &mut sink).unwrap();
        assert_eq!((sink.len(), sink.segments().len()), (60, 2));
        sink.write_at(8, b"over");
        let mut source = Source::new();
        memory.readable(98, 4, &mut source).unwrap();
        assert_eq!(source.to_vec(4), b"over");
        for (address, len) in [(90, 61), (150, 1), (159, 2), (210, 1), (205, 6), (u64::MAX, 2), (0, u32::MAX)]
        {
            let fault = memory.readable(address, len, &mut Source::new()).unwrap_err();
            assert_eq!(fault, QueueFault::OutsideMemory { address, len });
        }
    }

    #[test]
    fn rings_must_be_within_one_slot() {
        let memory = GuestMemory::new(vec![slot(0, 1000, 100), slot(100, 1100, 50)]).unwrap();
        assert_eq!(memory.ring(1040, 60).unwrap().1, 40);
        assert!(memory.ring(1090, 20).is_none(), "cut by the border of two spans");
        assert!(memory.ring(999, 1).is_none() && memory.ring(1, usize::MAX).is_none());
    }
}
