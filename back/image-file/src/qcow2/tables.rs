//! Whether an image counts its own tables as used (the qcow2 specification, "Host cluster management"). In one that does not, room for new data
//! would be taken where the tables lie, and a table that is to grow would find no end of that.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Where the fields of the header begin, in bytes.
const VERSION: usize = 4;
const CLUSTER_BITS: usize = 20;
const L1_ENTRIES: usize = 36;
const L1_OFFSET: usize = 40;
const REFCOUNT_TABLE_OFFSET: usize = 48;
const REFCOUNT_TABLE_CLUSTERS: usize = 56;
const REFCOUNT_ORDER: usize = 96;
const HEADER_LEN: usize = 104;

/// The low bits of an entry of the refcount table are reserved.
const OFFSET_MASK: u64 = !0x1FF;
/// QEMU takes no larger tables: 32 MiB of L1 entries, and 8 MiB of refcount table.
const TABLE_BYTES_MAX: u64 = 32 << 20;

struct Tables<'a> {
    file: &'a File,
    cluster_bits: u32,
    /// Each count has two to the power of this many bits.
    refcount_order: u32,
    offset: u64,
    len_bytes: u64,
}

/// Looks at all tables that the header names. An error says what is wrong.
pub(super) fn check(file: &File) -> io::Result<()> {
    let mut header = [0; HEADER_LEN];
    file.read_exact_at(&mut header, 0)?;
    let u32_at = |at: usize| {
        header.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_be_bytes)
    };
    let u64_at = |at: usize| {
        header.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_be_bytes)
    };
    let cluster_bits = u32_at(CLUSTER_BITS);
    let refcount_order = if u32_at(VERSION) < 3 { 4 } else { u32_at(REFCOUNT_ORDER) };
    if !(9..=21).contains(&cluster_bits) || refcount_order > 6 {
        return Err(io::Error::other("its header is damaged"));
    }
    let len_bytes = u64::from(u32_at(REFCOUNT_TABLE_CLUSTERS)) << cluster_bits;
    let offset = u64_at(REFCOUNT_TABLE_OFFSET);
    let tables = Tables { file, cluster_bits, refcount_order, offset, len_bytes };
    tables.check_used(0, 1)?;
    tables.check_used(offset, len_bytes)?;
    tables.check_used(u64_at(L1_OFFSET), u64::from(u32_at(L1_ENTRIES)) * 8)
}

impl Tables<'_> {
    /// All clusters of this part of the file, and those of the counts themselves.
    fn check_used(&self, offset: u64, len_bytes: u64) -> io::Result<()> {
        if len_bytes > TABLE_BYTES_MAX {
            return Err(io::Error::other("its tables are too large"));
        }
        let last = offset.saturating_add(len_bytes.saturating_sub(1)) >> self.cluster_bits;
        for cluster in offset >> self.cluster_bits..=last {
            let block = self.block_of(cluster)?;
            let is_used = self.is_counted(cluster)? && self.is_counted(block >> self.cluster_bits)?;
            if !is_used {
                return Err(io::Error::other(
                    "it does not count its own tables: qemu-img check -r all may mend it",
                ));
            }
        }
        Ok(())
    }

    /// Where the counts lie among which this cluster's is.
    fn block_of(&self, cluster: u64) -> io::Result<u64> {
        let entry = (cluster >> self.block_bits()).saturating_mul(8);
        if entry >= self.len_bytes {
            return Err(io::Error::other("a table lies beyond what is counted"));
        }
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, self.offset.saturating_add(entry))?;
        match u64::from_be_bytes(bytes) & OFFSET_MASK {
            0 => Err(io::Error::other("it does not count its own tables: qemu-img check -r all may mend it")),
            block => Ok(block),
        }
    }

    fn is_counted(&self, cluster: u64) -> io::Result<bool> {
        let block = self.block_of(cluster)?;
        let first_bit = (cluster & ((1 << self.block_bits()) - 1)) << self.refcount_order;
        let mut bytes = [0; 8];
        let bytes = &mut bytes[..(1 << self.refcount_order.saturating_sub(3)).min(8)];
        self.file.read_exact_at(bytes, block.saturating_add(first_bit / 8))?;
        // Those of less than a byte begin at its low end.
        let mask =
            if self.refcount_order < 3 { ((1u16 << (1 << self.refcount_order)) - 1) as u8 } else { 0xFF };
        let shift = if self.refcount_order < 3 { first_bit % 8 } else { 0 };
        Ok(bytes.iter().any(|byte| byte >> shift & mask != 0))
    }

    /// A block holds counts of two to the power of this many clusters.
    fn block_bits(&self) -> u32 {
        self.cluster_bits + 3 - self.refcount_order
    }
}
