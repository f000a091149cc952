//! Check that an image's own tables have refcounts (the qcow2 specification, "Host cluster management").
//! Otherwise new data could be allocated over the tables.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::header::{Header, HeaderError};

/// Offset in an entry of the refcount table, whose low bits are reserved.
pub(super) const OFFSET_MASK: u64 = !0x1FF;
/// Maximum size of a table in bytes: QEMU's limit for the L1 table (for the refcount table QEMU's limit is 8
/// MiB).
pub(super) const TABLE_BYTES_MAX: u64 = 32 << 20;

/// The refcount table of an image.
struct Tables<'a> {
    file: &'a File,
    header: &'a Header,
    /// Position of the table in the file.
    offset: u64,
    len_bytes: u64,
}

/// Checks that the clusters of the header, the refcount table and the L1 table have refcounts.
pub(super) fn check(file: &File) -> Result<(), HeaderError> {
    let header = Header::read(file)?;
    let offset = header.refcount_table_offset;
    let len_bytes = u64::from(header.refcount_table_clusters) << header.cluster_bits;
    let tables = Tables { file, header: &header, offset, len_bytes };
    tables.check_used(0, 1)?;
    tables.check_used(offset, len_bytes)?;
    Ok(tables.check_used(header.l1_offset, u64::from(header.l1_entries) * 8)?)
}

impl Tables<'_> {
    /// Checks that all clusters of this part of the file, and their refcount blocks, have refcounts.
    fn check_used(&self, offset: u64, len_bytes: u64) -> io::Result<()> {
        if len_bytes > TABLE_BYTES_MAX {
            return Err(io::Error::other("its tables are too large"));
        }
        let cluster_bits = self.header.cluster_bits;
        let last = offset.saturating_add(len_bytes.saturating_sub(1)) >> cluster_bits;
        for cluster in offset >> cluster_bits..=last {
            let block = self.block_of(cluster)?;
            let own = block >> cluster_bits;
            let is_used = self.is_counted(block, cluster)? && self.is_counted(self.block_of(own)?, own)?;
            if !is_used {
                return Err(io::Error::other("its own tables have no refcount: try qemu-img check -r all"));
            }
        }
        Ok(())
    }

    /// Returns the offset of the refcount block of a cluster.
    fn block_of(&self, cluster: u64) -> io::Result<u64> {
        let entry = (cluster >> self.header.block_bits()).saturating_mul(8);
        if entry >= self.len_bytes {
            return Err(io::Error::other("a table is beyond the range of the refcounts"));
        }
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, self.offset.saturating_add(entry))?;
        match u64::from_be_bytes(bytes) & OFFSET_MASK {
            0 => Err(io::Error::other("its own tables have no refcount: try qemu-img check -r all")),
            block => Ok(block),
        }
    }

    /// Returns `true` if this cluster has a refcount in the block at `block`.
    fn is_counted(&self, block: u64, cluster: u64) -> io::Result<bool> {
        let index = cluster & ((1 << self.header.block_bits()) - 1);
        let bit = index << self.header.refcount_order;
        // The eight bytes that contain the refcount.
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, block.saturating_add(bit / 64 * 8))?;
        Ok(count_in(&bytes, ((bit % 64) >> self.header.refcount_order) as usize, self.header.refcount_order)
            != 0)
    }
}

/// Returns a refcount from a block. Refcounts of less than a byte are stored from the low bits up. A missing
/// refcount is zero.
pub(super) fn count_in(bytes: &[u8], index: usize, order: u32) -> u64 {
    let bit = index << order;
    let len = 1 << order.saturating_sub(3);
    let whole = bytes.get(bit / 8..).and_then(|rest| rest.get(..len)).unwrap_or_default();
    let count = whole.iter().fold(0, |count, byte| count << 8 | u64::from(*byte));
    if order < 3 { count >> (bit % 8) & ((1 << (1 << order)) - 1) } else { count }
}
