//! The header of a redo log, its first page.

use crate::OverlayError;
use crate::layout::{PAGE_BYTES, SIZE_MAX};

const MAGIC: &[u8; 8] = b"TOMBOVLY";
const VERSION: u32 = 1;
/// Flag: sealed against further writes.
const SEALED: u32 = 1;
/// Offset of the base's name, after the numeric fields.
const NAME_AT: usize = 64;
/// Maximum lengths of the base's name and its fingerprint.
const NAME_BYTES_MAX: usize = 3072;
const MARK_BYTES_MAX: usize = 512;
/// Offset of the checksum of all that precedes it.
const SUM_AT: usize = PAGE_BYTES as usize - 4;

/// The header of a redo log. Constant, except for the seal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Size of the disk, in bytes.
    pub size_bytes: u64,
    /// Size of the base, in bytes. Beyond this size the overlay reads as zeroes until it is written.
    pub base_bytes: u64,
    /// Name of the base, for the program that opens it.
    pub base_name: Vec<u8>,
    /// Fingerprint of the base, which changes with its contents.
    pub base_mark: Vec<u8>,
    /// Checksum of the pages of a sealed overlay ([`Overlay::seal`](crate::Overlay::seal)).
    pub seal: Option<u32>,
}

impl Header {
    /// Encodes the header as the first page of a redo log.
    ///
    /// # Errors
    /// [`OverlayError::Size`], [`OverlayError::NameTooLong`] and [`OverlayError::MarkTooLong`] for values
    /// that do not fit.
    pub fn to_page(&self) -> Result<Vec<u8>, OverlayError> {
        let Self { size_bytes, base_bytes, base_name, base_mark, seal } = self;
        if !(512..=SIZE_MAX).contains(size_bytes) || size_bytes % 512 != 0 {
            return Err(OverlayError::Size { size_bytes: *size_bytes, max: SIZE_MAX });
        }
        if base_name.len() > NAME_BYTES_MAX {
            return Err(OverlayError::NameTooLong { max: NAME_BYTES_MAX });
        }
        if base_mark.len() > MARK_BYTES_MAX {
            return Err(OverlayError::MarkTooLong { max: MARK_BYTES_MAX });
        }
        let mut page = Vec::with_capacity(PAGE_BYTES as usize);
        page.extend_from_slice(MAGIC);
        page.extend_from_slice(&VERSION.to_le_bytes());
        page.extend_from_slice(&(base_name.len() as u32).to_le_bytes());
        page.extend_from_slice(&(base_mark.len() as u32).to_le_bytes());
        page.extend_from_slice(&seal.map_or(0, |_| SEALED).to_le_bytes());
        page.extend_from_slice(&size_bytes.to_le_bytes());
        page.extend_from_slice(&base_bytes.to_le_bytes());
        page.extend_from_slice(&seal.unwrap_or_default().to_le_bytes());
        page.resize(NAME_AT, 0);
        page.extend_from_slice(base_name);
        page.extend_from_slice(base_mark);
        page.resize(SUM_AT, 0);
        page.extend_from_slice(&crc32c::crc32c(&page).to_le_bytes());
        Ok(page)
    }

    /// Decodes the first page of a redo log, and verifies its checksum.
    pub fn from_page(page: &[u8]) -> Result<Self, OverlayError> {
        let damaged = OverlayError::Damaged;
        let u32_at =
            |at: usize| page.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
        let u64_at =
            |at: usize| page.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
        if !page.starts_with(MAGIC) {
            return Err(OverlayError::NotAnOverlay);
        }
        let short = || damaged("it is truncated");
        let version = u32_at(8).ok_or_else(short)?;
        if version != VERSION {
            return Err(OverlayError::Version(version));
        }
        let summed = page.get(..SUM_AT).ok_or_else(short)?;
        if u32_at(SUM_AT) != Some(crc32c::crc32c(summed)) {
            return Err(damaged("checksum mismatch"));
        }
        let size_bytes = u64_at(24).ok_or_else(short)?;
        let base_bytes = u64_at(32).ok_or_else(short)?;
        if !(512..=SIZE_MAX).contains(&size_bytes) || size_bytes % 512 != 0 || base_bytes % 512 != 0 {
            return Err(damaged("invalid size"));
        }
        let seal = match u32_at(20).ok_or_else(short)? {
            0 => None,
            SEALED => Some(u32_at(40).ok_or_else(short)?),
            _ => return Err(damaged("unknown flags")),
        };
        let mut rest = summed.get(NAME_AT..).unwrap_or_default();
        let mut bytes = |len: Option<u32>| {
            let (taken, left) = rest.split_at_checked(len? as usize)?;
            rest = left;
            Some(taken.to_vec())
        };
        let base_name = bytes(u32_at(12)).ok_or_else(|| damaged("the base's name is too long"))?;
        let base_mark = bytes(u32_at(16)).ok_or_else(|| damaged("the base's mark is too long"))?;
        Ok(Self { size_bytes, base_bytes, base_name, base_mark, seal })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let (base_name, base_mark) = (b"golden.img".to_vec(), vec![7; 24]);
        Header { size_bytes: 1 << 30, base_bytes: 1 << 29, base_name, base_mark, seal: Some(7) }
    }

    #[test]
    fn overlay_header_round_trips_and_detects_any_flip() {
        let page = header().to_page().expect("a page");
        assert_eq!(page.len(), PAGE_BYTES as usize);
        assert_eq!(Header::from_page(&page).expect("read"), header());
        for bit in (0..page.len() * 8).step_by(13) {
            let mut other = page.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::from_page(&other).is_err(), "bit {bit}");
        }
        for len in [0, 8, 12, 64, page.len() - 1] {
            assert!(Header::from_page(&page[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn invalid_overlay_header_is_not_encoded() {
        for size_bytes in [0, 511, 1000, SIZE_MAX + 512] {
            assert!(matches!(Header { size_bytes, ..header() }.to_page(), Err(OverlayError::Size { .. })));
        }
        let base_name = vec![b'n'; NAME_BYTES_MAX + 1];
        assert!(matches!(Header { base_name, ..header() }.to_page(), Err(OverlayError::NameTooLong { .. })));
        let base_mark = vec![7; MARK_BYTES_MAX + 1];
        let refused = Header { base_mark, ..header() }.to_page();
        assert!(matches!(refused, Err(OverlayError::MarkTooLong { max: MARK_BYTES_MAX })), "{refused:?}");
    }
}
