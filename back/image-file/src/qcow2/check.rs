//! Consistency check of an image's tables (the qcow2 specification, "Host cluster management" and "Cluster
//! mapping").

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use tombolo_core::block::OpenOptions;

use super::Qcow2Image;
use super::header::{Header, HeaderError, damaged, u64_at};
use super::opening::{Opener, Qcow2OpenError};
use super::tables::{OFFSET_MASK, TABLE_BYTES_MAX, count_in};

/// Offset of the referenced cluster or table in an L1 or L2 entry.
const CLUSTER_OFFSET_MASK: u64 = 0x00FF_FFFF_FFFF_FE00;
/// Flag of an entry whose cluster has a refcount of exactly one (QEMU's `QCOW_OFLAG_COPIED`).
const IS_COUNTED_ONCE: u64 = 1 << 63;
const IS_COMPRESSED: u64 = 1 << 62;
/// Reserved bits in L1 and L2 entries.
const L1_RESERVED: u64 = 0x7F00_0000_0000_01FF;
const L2_RESERVED: u64 = 0x3F00_0000_0000_01FE;

/// Maximum number of clusters: an image of 16 TiB with clusters of 64 KiB. Its refcounts take twice 512 MiB
/// of memory, as stored and as computed.
const CLUSTERS_MAX: u64 = 1 << 28;

/// Maximum number of inconsistencies listed.
const DAMAGES_MAX: usize = 10;

/// An inconsistency in an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Description of the inconsistency.
    pub what: &'static str,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:#x}", self.what, self.offset)
    }
}

/// Result of [`Qcow2Image::check`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// The first ten inconsistencies.
    pub damages: Vec<Damage>,
    /// Number of inconsistencies.
    pub damages_count: u64,
    /// Clusters whose refcount exceeds the number of their references, in bytes: space that is not reused
    /// until the image is repaired; this does no other harm. `None` for an image with snapshots or unknown
    /// extensions, such as bitmaps, whose clusters are not examined.
    pub leaked_bytes: Option<u64>,
}

impl Checked {
    fn add(&mut self, offset: u64, what: &'static str) {
        self.damages_count += 1;
        if self.damages.len() < DAMAGES_MAX {
            self.damages.push(Damage { offset, what });
        }
    }
}

impl Qcow2Image {
    /// Checks the refcounts and the mapping of the image at `path`, but not those of its backing files or
    /// snapshots. The image is only read, and locked against programs that would write to it meanwhile.
    pub fn check(path: &Path) -> Result<Checked, Qcow2OpenError> {
        let (opener, path) = Opener::new(path, None, &OpenOptions::default())?;
        let file = opener.file(&path, false)?;
        check(&file).map_err(|error| Qcow2OpenError::of_header(&path, error))
    }
}

fn check(file: &File) -> Result<Checked, HeaderError> {
    let header = Header::read(file)?;
    let clusters = crate::opening::size_of(file)?.div_ceil(header.cluster_bytes());
    if clusters > CLUSTERS_MAX {
        return Err(damaged("it has too many clusters to check").into());
    }
    let mut walk = Walk {
        file,
        cluster_bytes: header.cluster_bytes(),
        used: vec![0; clusters as usize],
        shared: Vec::new(),
        found: Checked::default(),
    };
    walk.used_by(0, header.cluster_bytes());
    let counts = walk.counts(&header)?;
    walk.mapping(&header)?;
    walk.compare(&header, &counts)?;
    Ok(walk.found)
}

struct Walk<'a> {
    file: &'a File,
    cluster_bytes: u64,
    /// Number of references to each cluster of the file.
    used: Vec<u16>,
    /// Entries of the mapping: the index of the referenced cluster, and the flag [`IS_COUNTED_ONCE`].
    shared: Vec<(u64, bool)>,
    found: Checked,
}

impl Walk<'_> {
    /// Counts a reference to a part of the file. Records an inconsistency and returns `false` if the part is
    /// beyond the end.
    fn used_by(&mut self, offset: u64, len_bytes: u64) -> bool {
        let (first, last) =
            (offset / self.cluster_bytes, (offset.saturating_add(len_bytes) - 1) / self.cluster_bytes);
        match self.used.get_mut(first as usize..=last as usize) {
            Some(used) => {
                used.iter_mut().for_each(|count| *count = count.saturating_add(1));
                true
            }
            None => {
                self.found.add(offset, "reference to a cluster beyond the end of the file");
                false
            }
        }
    }

    fn check_reserved(&mut self, table: u64, bits: u64) {
        if bits != 0 {
            self.found.add(table, "table entry with reserved bits set");
        }
    }

    /// Counts a table's reference to a cluster. Records an inconsistency and returns `false` if the cluster
    /// is misaligned or beyond the end.
    fn cluster_used(&mut self, offset: u64) -> bool {
        if !offset.is_multiple_of(self.cluster_bytes) {
            self.found.add(offset, "reference to a misaligned cluster");
            return false;
        }
        self.used_by(offset, self.cluster_bytes)
    }

    /// Reads a table. The file may end within the table's last cluster; the missing bytes read as zeroes.
    fn table(&self, offset: u64, len_bytes: u64) -> io::Result<Vec<u64>> {
        if len_bytes > TABLE_BYTES_MAX {
            return Err(damaged("its tables are too large"));
        }
        let mut bytes = vec![0; len_bytes as usize];
        let mut filled = 0;
        while filled < bytes.len() {
            match self.file.read_at(&mut bytes[filled..], offset.saturating_add(filled as u64))? {
                0 => break,
                count => filled += count,
            }
        }
        Ok((0..bytes.len() / 8).map(|index| u64_at(&bytes, index * 8)).collect())
    }

    /// Counts the references to the refcount table and its blocks. Returns the blocks' offsets; zero for
    /// missing or invalid ones.
    fn counts(&mut self, header: &Header) -> io::Result<Vec<u64>> {
        let len_bytes = u64::from(header.refcount_table_clusters) << header.cluster_bits;
        let table = self.table(header.refcount_table_offset, len_bytes)?;
        for entry in &table {
            self.check_reserved(header.refcount_table_offset, entry & !OFFSET_MASK);
        }
        for number in 0..u64::from(header.refcount_table_clusters) {
            self.cluster_used(header.refcount_table_offset.saturating_add(number << header.cluster_bits));
        }
        Ok(table
            .into_iter()
            .map(|entry| match entry & OFFSET_MASK {
                0 => 0,
                block => block * u64::from(self.cluster_used(block)),
            })
            .collect())
    }

    /// Counts the references of the L1 table and of the L2 tables.
    fn mapping(&mut self, header: &Header) -> io::Result<()> {
        if header.l1_entries == 0 {
            return Ok(());
        }
        let len_bytes = u64::from(header.l1_entries) * 8;
        let l1 = self.table(header.l1_offset, len_bytes)?;
        self.used_by(header.l1_offset, len_bytes);
        for entry in l1 {
            self.check_reserved(header.l1_offset, entry & L1_RESERVED);
            let offset = entry & CLUSTER_OFFSET_MASK;
            if offset == 0 || !self.cluster_used(offset) {
                continue;
            }
            self.note_flag(offset, entry);
            // A table with several references is walked once; its refcount is compared with them later.
            if self.used[(offset / self.cluster_bytes) as usize] == 1 {
                for entry in self.table(offset, self.cluster_bytes)? {
                    self.mapped(header, offset, entry);
                }
            }
        }
        Ok(())
    }

    fn note_flag(&mut self, offset: u64, entry: u64) {
        self.shared.push((offset / self.cluster_bytes, entry & IS_COUNTED_ONCE != 0));
    }

    /// Counts the references of an L2 entry, which is in the table at `table`.
    fn mapped(&mut self, header: &Header, table: u64, entry: u64) {
        if entry & IS_COMPRESSED != 0 {
            // "Compressed Clusters Descriptor": the offset, then the number of additional sectors.
            let sectors_at = 62 - (header.cluster_bits - 8);
            let offset = entry & ((1 << sectors_at) - 1);
            let sectors = (entry & (IS_COMPRESSED - 1)) >> sectors_at;
            // The file may end within the last sector.
            let file_end = self.used.len() as u64 * self.cluster_bytes;
            let end =
                (offset - offset % 512).saturating_add((sectors + 1) * 512).min(file_end.max(offset + 1));
            self.used_by(offset, end - offset);
            return;
        }
        self.check_reserved(table, entry & L2_RESERVED);
        let offset = entry & CLUSTER_OFFSET_MASK;
        // Data in an external file has no refcount.
        if offset != 0 && !header.has_data_file && self.cluster_used(offset) {
            self.note_flag(offset, entry);
        }
    }

    /// Records the clusters whose stored refcount is too low or whose copied flag contradicts it, and adds up
    /// those whose refcount is too high.
    fn compare(&mut self, header: &Header, counts: &[u64]) -> io::Result<()> {
        let per_block = 1 << header.block_bits();
        let mut counted = vec![0_u16; self.used.len()];
        for (counted, block) in counted.chunks_mut(per_block).zip(counts).filter(|(_, block)| **block != 0) {
            let mut bytes = vec![0; self.cluster_bytes as usize];
            self.file.read_exact_at(&mut bytes, *block)?;
            for (index, counted) in counted.iter_mut().enumerate() {
                *counted = count_in(&bytes, index, header.refcount_order).try_into().unwrap_or(u16::MAX);
            }
        }
        let mut leaked = 0;
        for (index, (used, counted)) in std::mem::take(&mut self.used).into_iter().zip(&counted).enumerate() {
            if used > *counted {
                let what = "cluster with more references than its refcount";
                self.found.add(index as u64 * self.cluster_bytes, what);
            }
            leaked += u64::from(used < *counted) * self.cluster_bytes;
        }
        self.found.leaked_bytes = Some(leaked).filter(|_| !header.has_more);
        for (cluster, is_once) in std::mem::take(&mut self.shared) {
            if is_once != (counted[cluster as usize] == 1) {
                let what = "copied flag contradicts the refcount";
                self.found.add(cluster * self.cluster_bytes, what);
            }
        }
        Ok(())
    }
}
