//! Layout of a region (docs/formats/link.md, "Region").

use thiserror::Error;

/// Size of the header page at the start of a region, in bytes.
pub const HEADER_BYTES: u64 = 4096;
/// Size of a ring's slot, in bytes: a cache line.
pub const SLOT_BYTES: u64 = 64;
/// Size of a buffer for the variable part of a request or answer, in bytes. Each slot has one.
pub const FRAME_BYTES: u64 = 4096;
/// Minimum number of slots of a ring, and thus of outstanding requests.
pub const SLOTS_MIN: u32 = 8;
/// Maximum number of slots of a ring, and thus of outstanding requests.
pub const SLOTS_MAX: u32 = 1024;
/// Minimum number of slots of a back ring, which is reserved for call-backs by the server.
pub const BACK_SLOTS_MIN: u32 = 8;
/// Maximum number of slots of a back ring.
pub const BACK_SLOTS_MAX: u32 = 256;
/// Maximum size of a region, in bytes.
pub const REGION_BYTES_MAX: u64 = 1 << 40;

const PAGE_BYTES: u64 = 4096;

/// The layout of a region, the same for both sides of a link: header page, ring of requests or answers, back
/// ring of call-backs (reserved) or answers to them, a buffer for each slot, and bulk memory for file data.
///
/// All offsets are in bytes from the start of the region, which is page-aligned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Layout {
    slots: u32,
    back_slots: u32,
    bytes: u64,
}

/// The reason why a layout is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// Invalid number of slots.
    #[error("{slots} slots: must be a power of two from {SLOTS_MIN} to {SLOTS_MAX}")]
    Slots {
        /// Requested number of slots.
        slots: u32,
    },
    /// Invalid number of slots of the back ring.
    #[error(
        "{back_slots} slots for call-backs: must be a power of two from {BACK_SLOTS_MIN} to {BACK_SLOTS_MAX}"
    )]
    BackSlots {
        /// Requested number of slots of the back ring.
        back_slots: u32,
    },
    /// Invalid size of the region.
    #[error("a region of {bytes} bytes: must be whole pages, {min} to {REGION_BYTES_MAX} bytes")]
    Bytes {
        /// Requested size, in bytes.
        bytes: u64,
        /// Minimum size with those rings, in bytes: it includes one page of bulk data.
        min: u64,
    },
}

impl Layout {
    /// Returns the layout of a region of `bytes` with at most `slots` outstanding requests and `back_slots`
    /// call-backs. Both are powers of two within their limits, and `bytes` is a number of whole pages that
    /// leaves at least one for bulk data.
    pub fn new(slots: u32, back_slots: u32, bytes: u64) -> Result<Layout, LayoutError> {
        if !slots.is_power_of_two() || !(SLOTS_MIN..=SLOTS_MAX).contains(&slots) {
            return Err(LayoutError::Slots { slots });
        }
        if !back_slots.is_power_of_two() || !(BACK_SLOTS_MIN..=BACK_SLOTS_MAX).contains(&back_slots) {
            return Err(LayoutError::BackSlots { back_slots });
        }
        let layout = Layout { slots, back_slots, bytes };
        let min = layout.bulk_offset() + PAGE_BYTES;
        if !bytes.is_multiple_of(PAGE_BYTES) || !(min..=REGION_BYTES_MAX).contains(&bytes) {
            return Err(LayoutError::Bytes { bytes, min });
        }
        Ok(layout)
    }

    /// Returns the layout with `bulk_bytes` of bulk data, rounded up to whole pages, at least one.
    pub fn with_bulk(slots: u32, back_slots: u32, bulk_bytes: u64) -> Result<Layout, LayoutError> {
        // A layout with the maximum region is created first, so that the rings are checked before sizes are
        // computed from them.
        let largest = Layout::new(slots, back_slots, REGION_BYTES_MAX)?;
        let bulk = bulk_bytes.max(1).checked_next_multiple_of(PAGE_BYTES).unwrap_or(u64::MAX);
        Layout::new(slots, back_slots, largest.bulk_offset().saturating_add(bulk))
    }

    /// Returns the number of slots of the ring, of buffers, and of requests that may be outstanding.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Returns the number of slots of the back ring, and of call-backs that may be outstanding.
    pub fn back_slots(&self) -> u32 {
        self.back_slots
    }

    /// Returns the size of the region, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the offset of the ring: requests in the client's region, answers in the server's.
    pub fn ring_offset(&self) -> u64 {
        HEADER_BYTES
    }

    /// Returns the offset of the back ring: call-backs in the server's region, answers to them in the
    /// client's.
    pub fn back_ring_offset(&self) -> u64 {
        self.ring_offset() + u64::from(self.slots) * SLOT_BYTES
    }

    /// Returns the offset of the buffers, one for each slot: whole pages behind the rings.
    pub fn buffers_offset(&self) -> u64 {
        let rings_end = self.back_ring_offset() + u64::from(self.back_slots) * SLOT_BYTES;
        rings_end.next_multiple_of(PAGE_BYTES)
    }

    /// Returns the offset of buffer `index`, [`FRAME_BYTES`] long; `None` from [`slots`](Self::slots) on.
    pub fn buffer_offset(&self, index: u32) -> Option<u64> {
        (index < self.slots).then(|| self.buffers_offset() + u64::from(index) * FRAME_BYTES)
    }

    /// Returns the offset of bulk data, which extend to the end of the region.
    pub fn bulk_offset(&self) -> u64 {
        self.buffers_offset() + u64::from(self.slots) * FRAME_BYTES
    }

    /// Returns the size of bulk data, in bytes.
    pub fn bulk_bytes(&self) -> u64 {
        self.bytes - self.bulk_offset()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_example_that_the_format_spells_out() {
        let layout = Layout::new(64, 8, 2 << 20).expect("a layout");
        assert_eq!(layout.ring_offset(), 4096);
        assert_eq!(layout.back_ring_offset(), 8192);
        assert_eq!(layout.buffers_offset(), 12_288);
        assert_eq!(layout.buffer_offset(1), Some(16_384));
        assert_eq!(layout.buffer_offset(64), None);
        assert_eq!(layout.bulk_offset(), 274_432);
        assert_eq!(layout.bulk_bytes(), (2 << 20) - 274_432);
    }

    #[test]
    fn layout_limits_are_enforced() {
        for slots in [0, 1, 4, 7, 9, 1000, 2048, u32::MAX] {
            assert_eq!(Layout::new(slots, 8, 8 << 20), Err(LayoutError::Slots { slots }));
        }
        for back_slots in [0, 4, 12, 512, u32::MAX] {
            assert_eq!(Layout::new(8, back_slots, 8 << 20), Err(LayoutError::BackSlots { back_slots }));
        }
        let min = Layout::with_bulk(8, 8, 0).expect("the smallest").bytes();
        assert_eq!(Layout::new(8, 8, min).map(|layout| layout.bulk_bytes()), Ok(4096));
        for bytes in [0, min - 4096, min + 1, REGION_BYTES_MAX + 4096, u64::MAX] {
            assert_eq!(Layout::new(8, 8, bytes), Err(LayoutError::Bytes { bytes, min }));
        }
        assert!(matches!(Layout::with_bulk(8, 8, u64::MAX), Err(LayoutError::Bytes { .. })));
    }

    proptest! {
        #[test]
        fn layout_parts_are_contiguous_and_complete(slots in 3u32..=10, back in 3u32..=8, bulk in 0u64..1 << 32) {
            let layout = Layout::with_bulk(1 << slots, 1 << back, bulk).expect("a layout");
            prop_assert!(layout.bulk_bytes() >= bulk);
            prop_assert_eq!(layout.bulk_offset() % 4096, 0);
            prop_assert_eq!(layout.buffers_offset() % 4096, 0);
            prop_assert!(layout.buffers_offset() >= layout.back_ring_offset() + u64::from(layout.back_slots()) * 64);
            let last = layout.buffer_offset(layout.slots() - 1).expect("the last buffer");
            prop_assert_eq!(last + FRAME_BYTES, layout.bulk_offset());
            prop_assert_eq!(layout.bulk_offset() + layout.bulk_bytes(), layout.bytes());
            prop_assert_eq!(Layout::new(layout.slots(), layout.back_slots(), layout.bytes()), Ok(layout));
        }
    }
}
