//! Fields of a split virtqueue's rings in guest memory.

use super::memory::GuestMemory;
use super::walk::{DESCRIPTOR_LEN, DescriptorTable};
use std::sync::atomic::Ordering;
use tombolo_mem::{OutOfBounds, Region};

/// Addresses of a queue's three parts in the front end's address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RingAddresses {
    pub(crate) descriptors: u64,
    pub(crate) available: u64,
    pub(crate) used: u64,
}

/// A split virtqueue's rings (virtio 1.2, 2.7) as used by the device. The guest may have written anything to
/// them; the region checks every access, at little cost.
#[derive(Debug)]
pub(crate) struct Rings {
    pub(crate) size: u16,
    pub(crate) table: DescriptorTable,
    available: Ring,
    used: Ring,
}

/// One ring: `flags`, `idx`, the entries, and an event index, the position of the other ring at which the
/// writer of this ring wants to be notified. All fields but the entries have two bytes.
#[derive(Debug)]
struct Ring {
    region: Region,
    offset: usize,
}

const FLAGS: usize = 0;
const INDEX: usize = 2;
const ENTRIES: usize = 4;
const AVAILABLE_ENTRY: usize = 2;
const USED_ENTRY: usize = 8;

/// Flag in either ring: the writer of the ring wants no notifications (2.7.7, 2.7.10).
const NO_NOTIFY: u16 = 1;

impl Rings {
    /// Locates the rings in the guest's memory; `None` if one is not contained in one slot, or if the
    /// available or the used ring has an odd address.
    pub(crate) fn new(
        memory: &GuestMemory,
        size: u16,
        addresses: RingAddresses,
        indirect: bool,
    ) -> Option<Rings> {
        let n = usize::from(size);
        let (region, offset) = memory.ring(addresses.descriptors, n * DESCRIPTOR_LEN)?;
        let table = DescriptorTable::new(region, offset, size, indirect);
        let part = |address, len| memory.ring(address, len).map(|(region, offset)| Ring { region, offset });
        let available = part(addresses.available, ENTRIES + n * AVAILABLE_ENTRY + 2)?;
        let used = part(addresses.used, ENTRIES + n * USED_ENTRY + 2)?;
        let rings = Rings { size, table, available, used };
        // Detects an odd address once, off the hot path.
        rings.available_index().ok()?;
        rings.used_index().ok()?;
        Some(rings)
    }

    pub(crate) fn used_len(size: u16) -> u64 {
        ENTRIES as u64 + u64::from(size) * USED_ENTRY as u64 + 2
    }

    /// Returns the index up to which the driver has handed over chains; its earlier writes are visible
    /// afterwards.
    #[inline]
    pub(crate) fn available_index(&self) -> Result<u16, OutOfBounds> {
        self.available.load(INDEX, Ordering::Acquire)
    }

    /// Returns the head of the chain at a position, a free-running index like `idx`.
    #[inline]
    pub(crate) fn available_entry(&self, position: u16) -> Result<u16, OutOfBounds> {
        self.available.load(ENTRIES + self.slot(position) * AVAILABLE_ENTRY, Ordering::Relaxed)
    }

    /// Returns `true` if the driver wants no interrupts (without event index).
    pub(crate) fn interrupts_unwanted(&self) -> Result<bool, OutOfBounds> {
        Ok(self.available.load(FLAGS, Ordering::Relaxed)? & NO_NOTIFY != 0)
    }

    /// Returns the used index at whose passing the driver wants an interrupt (with event index).
    pub(crate) fn used_event(&self) -> Result<u16, OutOfBounds> {
        self.available.load(ENTRIES + usize::from(self.size) * AVAILABLE_ENTRY, Ordering::Relaxed)
    }

    /// Returns the used index in guest memory, which outlives a server: the position of the next used entry.
    pub(crate) fn used_index(&self) -> Result<u16, OutOfBounds> {
        self.used.load(INDEX, Ordering::Acquire)
    }

    /// Writes the used entry at a position: a chain and the number of bytes written.
    #[inline]
    pub(crate) fn set_used_entry(&self, position: u16, head: u16, written: u32) -> Result<(), OutOfBounds> {
        let mut entry = [0; USED_ENTRY];
        let (id, len) = entry.split_at_mut(4);
        id.copy_from_slice(&u32::from(head).to_le_bytes());
        len.copy_from_slice(&written.to_le_bytes());
        self.used.region.write_at(self.used.offset + ENTRIES + self.slot(position) * USED_ENTRY, &entry)
    }

    /// Publishes the used entries before this index.
    #[inline]
    pub(crate) fn set_used_index(&self, index: u16) -> Result<(), OutOfBounds> {
        self.used.store(INDEX, index, Ordering::Release)
    }

    /// Requests or suppresses kicks (without event index).
    pub(crate) fn want_kicks(&self, wanted: bool) -> Result<(), OutOfBounds> {
        self.used.store(FLAGS, if wanted { 0 } else { NO_NOTIFY }, Ordering::Relaxed)
    }

    /// Requests a kick when the available index passes `index` (with event index).
    pub(crate) fn set_available_event(&self, index: u16) -> Result<(), OutOfBounds> {
        self.used.store(ENTRIES + usize::from(self.size) * USED_ENTRY, index, Ordering::Relaxed)
    }

    fn slot(&self, position: u16) -> usize {
        // The size is a power of two.
        usize::from(position & (self.size - 1))
    }
}

impl Ring {
    #[inline]
    fn load(&self, field: usize, order: Ordering) -> Result<u16, OutOfBounds> {
        self.region.load_u16(self.offset + field, order).map(u16::from_le)
    }

    #[inline]
    fn store(&self, field: usize, value: u16, order: Ordering) -> Result<(), OutOfBounds> {
        self.region.store_u16(self.offset + field, value.to_le(), order)
    }
}

/// Returns `true` if the writer of a ring, having moved its index from `old` to `new`, must notify the
/// reader, whose event index is `event` (virtio 1.2, 2.7.7.1).
pub(crate) fn passes_event(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_index_decides_interrupts() {
        for start in [0u16, 1000, u16::MAX - 3] {
            for step in 1..8u16 {
                for event in 0..16u16 {
                    let (old, new) = (start, start.wrapping_add(step));
                    let event = start.wrapping_add(event).wrapping_sub(8);
                    let passed = (0..step).any(|i| old.wrapping_add(i) == event);
                    assert_eq!(passes_event(event, new, old), passed, "{old} to {new} with {event}");
                }
            }
        }
    }
}
