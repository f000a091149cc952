//! The header page of a region (docs/formats/link.md, "Header").
//!
//! The first 64 bytes describe the region, for debugging tools; the agreement negotiated in messages takes
//! precedence. The words behind them change continuously. Each has a pair of cache lines to itself
//! (processors fetch pairs), so that one side's stores do not steal a line that the other is polling.

use std::sync::atomic::Ordering;

use thiserror::Error;
use tombolo_mem::OutOfBounds;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromZeros, IntoBytes};

use crate::link::ends::{DoorbellKind, Epoch, Extent, Role};
use crate::link::layout::{HEADER_BYTES, Layout, LayoutError};
use crate::link::raw::raw;
use crate::link::terms::{Features, Incarnation, VERSION};

/// Offset of the owner's heartbeat: u64, incremented with each beat.
pub const HEARTBEAT_OFFSET: u64 = 128;
/// Offset of the notify flag of the owner's consumer: u32, odd while it sleeps, changing with each sleep.
pub const NOTIFY_FLAG_OFFSET: u64 = 256;
/// Offset of the owner's doorbell: u32, incremented with each ring. The peer's consumer sleeps on it.
pub const DOORBELL_OFFSET: u64 = 384;

const MAGIC: [u8; 8] = *b"TMBLRGN\0";

/// Returns the heartbeat count in a side's header. The memory is large enough for a header, so the call
/// cannot fail. The count is not validated.
pub(super) fn heartbeat(end: &Extent) -> u64 {
    let at = end.place(HEARTBEAT_OFFSET, 8);
    at.and_then(|at| end.region().load_u64(at, Ordering::Relaxed)).map_or(0, u64::from_le)
}

/// Stores this side's heartbeat count in its own memory.
pub(super) fn set_heartbeat(own: &Extent, count: u64) {
    let at = own.place(HEARTBEAT_OFFSET, 8);
    let stored = at.and_then(|at| own.region().store_u64(at, count.to_le(), Ordering::Relaxed));
    debug_assert!(stored.is_ok(), "{stored:?}");
}

/// The contents of a region's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Side that owns the region.
    pub role: Role,
    /// Extensions in use: those supported by both sides.
    pub features: Features,
    /// Layout of the region.
    pub layout: Layout,
    /// Generation of the link for which the region was formatted.
    pub epoch: Epoch,
    /// Means by which the sides wake each other.
    pub doorbell: DoorbellKind,
    /// Incarnation of the owning client or server.
    pub incarnation: Incarnation,
}

/// The reason why a page is not a valid header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum HeaderError {
    /// The region is shorter than a header.
    #[error("too short for a header")]
    Short(#[from] OutOfBounds),
    /// Wrong magic bytes.
    #[error("not the header of a region")]
    Magic,
    /// Unsupported version.
    #[error("header version {version} is not supported, expected {VERSION}")]
    Version {
        /// Version found in the page.
        version: u32,
    },
    /// A field with an undefined value.
    #[error("invalid {what}: {value}")]
    Value {
        /// Name of the field, for the log.
        what: &'static str,
        /// Value found in the page.
        value: u32,
    },
    /// Sizes that violate the rules of a layout.
    #[error("inconsistent sizes")]
    Layout(#[from] LayoutError),
}

impl Header {
    /// Initialises the memory of its owner, which alone may call this, before the peer reads it: clears
    /// header page and rings, so that no slot of an earlier link remains, and writes the header.
    pub fn format(&self, own: &Extent) -> Result<(), OutOfBounds> {
        const ZEROES: [u8; 4096] = [0; 4096];
        for page in (0..self.layout.buffers_offset()).step_by(ZEROES.len()) {
            own.write_at(page, &ZEROES)?;
        }
        own.write_at(0, Raw::from(self).as_bytes())
    }

    /// Reads the header at the start of a side's memory. It is copied once, then checked.
    pub fn read(end: &Extent) -> Result<Header, HeaderError> {
        let mut raw = Raw::new_zeroed();
        end.read_at(0, raw.as_mut_bytes())?;
        Header::try_from(&raw)
    }
}

raw! {
    struct Raw: 0..64 {
        0 magic: [u8; 8],
        8 version: U32,
        12 role: U32,
        16 features: U64,
        24 slots: U32,
        28 back_slots: U32,
        32 bytes: U64,
        40 epoch: U32,
        44 doorbell: U32,
        48 incarnation: [u8; 16],
    }
}

const _: () = {
    assert!(size_of::<Raw>() as u64 <= HEARTBEAT_OFFSET);
    assert!(DOORBELL_OFFSET + 4 <= HEADER_BYTES);
};

impl From<&Header> for Raw {
    fn from(header: &Header) -> Raw {
        Raw {
            magic: MAGIC,
            version: U32::new(VERSION),
            role: U32::new(header.role.number()),
            features: U64::new(header.features.bits()),
            slots: U32::new(header.layout.slots()),
            back_slots: U32::new(header.layout.back_slots()),
            bytes: U64::new(header.layout.bytes()),
            epoch: U32::new(header.epoch.number()),
            doorbell: U32::new(header.doorbell.number()),
            incarnation: header.incarnation.0,
        }
    }
}

impl TryFrom<&Raw> for Header {
    type Error = HeaderError;

    fn try_from(raw: &Raw) -> Result<Header, HeaderError> {
        if raw.magic != MAGIC {
            return Err(HeaderError::Magic);
        }
        if raw.version.get() != VERSION {
            return Err(HeaderError::Version { version: raw.version.get() });
        }
        let value = |what, value: U32| HeaderError::Value { what, value: value.get() };
        Ok(Header {
            role: Role::from_number(raw.role.get()).ok_or_else(|| value("role", raw.role))?,
            features: Features::from_bits_retain(raw.features.get()),
            layout: Layout::new(raw.slots.get(), raw.back_slots.get(), raw.bytes.get())?,
            epoch: Epoch::new(raw.epoch.get()).ok_or_else(|| value("epoch", raw.epoch))?,
            doorbell: DoorbellKind::from_number(raw.doorbell.get())
                .ok_or_else(|| value("doorbell", raw.doorbell))?,
            incarnation: Incarnation(raw.incarnation),
        })
    }
}

#[cfg(test)]
mod tests {
    use tombolo_mem::Region;

    use super::*;

    fn header(layout: Layout) -> Header {
        Header {
            role: Role::Server,
            features: Features::empty(),
            layout,
            epoch: Epoch::new(7).expect("not zero"),
            doorbell: DoorbellKind::Silent,
            incarnation: Incarnation([3; 16]),
        }
    }

    #[test]
    fn formatting_clears_all_earlier_contents() {
        let layout = Layout::with_bulk(8, 8, 0).expect("a layout");
        let len = usize::try_from(layout.bytes()).expect("small");
        let end = Extent::whole(Region::from(vec![0xAA; len]));
        header(layout).format(&end).expect("room");
        assert_eq!(Header::read(&end), Ok(header(layout)));
        let mut rest =
            vec![0xFF; usize::try_from(layout.buffers_offset()).expect("small") - size_of::<Raw>()];
        end.read_at(size_of::<Raw>() as u64, &mut rest).expect("inside");
        assert!(rest.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn malformed_region_headers_have_distinct_errors() {
        let layout = Layout::with_bulk(8, 8, 0).expect("a layout");
        let end = Extent::whole(Region::heap(usize::try_from(layout.bytes()).expect("small")));
        assert_eq!(Header::read(&end), Err(HeaderError::Magic));
        let spoilt = |at: u64, bytes: &[u8]| {
            header(layout).format(&end).expect("room");
            end.write_at(at, bytes).expect("inside");
            Header::read(&end)
        };
        assert_eq!(spoilt(8, &[2]), Err(HeaderError::Version { version: 2 }));
        assert_eq!(spoilt(12, &[9]), Err(HeaderError::Value { what: "role", value: 9 }));
        assert_eq!(spoilt(40, &[0]), Err(HeaderError::Value { what: "epoch", value: 0 }));
        assert_eq!(spoilt(44, &[7]), Err(HeaderError::Value { what: "doorbell", value: 7 }));
        assert_eq!(spoilt(24, &[9]), Err(HeaderError::Layout(LayoutError::Slots { slots: 9 })));
        assert!(matches!(spoilt(36, &[1, 2, 3, 4]), Err(HeaderError::Layout(LayoutError::Bytes { .. }))));
        let short = Extent::whole(Region::heap(63));
        assert!(matches!(Header::read(&short), Err(HeaderError::Short(_))));
    }
}
