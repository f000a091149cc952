//! Layout of a redo log: the header, then for each segment a page of states and the data of its blocks.

/// Unit of copying, in bytes: the block size of most file systems, so that few writes have to be completed
/// with data of the base.
pub(crate) const BLOCK_BYTES: u64 = 4096;
/// Length of the header and of a page of states, in bytes.
pub const PAGE_BYTES: u64 = 4096;
/// Number of blocks with states in one page, at two bits each.
pub(crate) const SEGMENT_BLOCKS: u64 = PAGE_BYTES * 4;
/// Length of a segment's blocks, in bytes.
pub(crate) const SEGMENT_BYTES: u64 = SEGMENT_BLOCKS * BLOCK_BYTES;
/// Maximum size of a disk, in bytes (16 TiB): the pages of states take 1 GiB of memory if the whole disk was
/// written.
pub(crate) const SIZE_MAX: u64 = 1 << 44;

/// Returns the offset of a segment's page of states in the redo log.
pub(crate) const fn page_at(segment: u64) -> u64 {
    PAGE_BYTES + segment * (PAGE_BYTES + SEGMENT_BYTES)
}

/// Returns the offset of a byte of the disk in the redo log. Offsets are contiguous within a segment.
pub(crate) const fn data_at(offset: u64) -> u64 {
    page_at(offset / SEGMENT_BYTES) + PAGE_BYTES + offset % SEGMENT_BYTES
}

/// Returns the length of the redo log of a disk of this size.
pub(crate) const fn len_bytes(size_bytes: u64) -> u64 {
    match size_bytes.checked_sub(1) {
        None => PAGE_BYTES,
        Some(last) => data_at(last - last % BLOCK_BYTES) + BLOCK_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_and_their_blocks_follow_each_other() {
        assert_eq!(data_at(0), 2 * PAGE_BYTES);
        assert_eq!(data_at(SEGMENT_BYTES - 1) + 1, page_at(1));
        assert_eq!(data_at(SEGMENT_BYTES), page_at(1) + PAGE_BYTES);
        assert_eq!(len_bytes(512), 3 * PAGE_BYTES);
        assert_eq!(len_bytes(SEGMENT_BYTES), page_at(1));
        assert_eq!(len_bytes(SEGMENT_BYTES + 1), page_at(1) + 2 * PAGE_BYTES);
        assert!(len_bytes(SIZE_MAX) < 1 << 45);
    }
}
