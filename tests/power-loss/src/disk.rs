//! The log of all writes to a disk, in the format of Linux's dm-log-writes, which QEMU's `blklogwrites` also
//! writes.
//!
//! The log begins with a header block, which gives the block size and the number of entries. Each entry is a
//! block that describes a request, followed by the data written. QEMU logs a request when it begins: a write
//! that a file system flushes has ended before the flush begins, and therefore precedes it in the log.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use fastrand::Rng;

use crate::Result;

const MAGIC: u64 = 0x006a_7366_7773_6872;
/// A flush: all writes that ended before it are on the disk.
const FLUSH: u64 = 1;
/// FUA: the write is on the disk when it has ended.
const FUA: u64 = 2;
/// The range reads as zeroes; no data follow.
const DISCARD: u64 = 4;
/// A text marker, which dm-log-writes adds on request, and QEMU never.
const MARK: u64 = 8;

/// Atomic write size of the disk: ext4 relies on it for its superblock.
const PIECE_BYTES: usize = 4096;

/// The log.
#[derive(Debug)]
pub struct Log {
    file: File,
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    flags: u64,
    /// Offset on the disk.
    at: u64,
    /// Length of the range on the disk, in bytes.
    len: usize,
    /// Offset of its data in the log.
    data_at: u64,
}

/// Reads the header: the number of entries and the block size, in bytes.
fn header(file: &File) -> Result<(u64, u64)> {
    let mut bytes = [0; 28];
    file.read_exact_at(&mut bytes, 0)?;
    if u64_at(&bytes, 0) != MAGIC {
        return Err("not a log of writes".into());
    }
    Ok((u64_at(&bytes, 2), u64_at(&bytes, 3)))
}

/// Returns the little-endian 64-bit number at `index`, in units of eight bytes; missing bytes are zeroes.
fn u64_at(bytes: &[u8], index: usize) -> u64 {
    let mut word = [0; 8];
    let there = &bytes[index * 8..bytes.len().min(index * 8 + 8)];
    word[..there.len()].copy_from_slice(there);
    u64::from_le_bytes(word)
}

/// Returns the number of entries, up to the latest completed flush.
pub fn entries(log: &File) -> Result<u64> {
    Ok(header(log)?.0)
}

impl Log {
    /// Reads all entries, without their data.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path)?;
        let (count, block_bytes) = header(&file)?;
        let (mut entries, mut place) = (Vec::new(), block_bytes);
        for _ in 0..count {
            let mut bytes = [0; 32];
            file.read_exact_at(&mut bytes, place)?;
            let (blocks, flags) = (u64_at(&bytes, 1), u64_at(&bytes, 2));
            if flags & MARK != 0 {
                return Err("a mark in the log".into());
            }
            let (at, len, data_at) =
                (u64_at(&bytes, 0) * block_bytes, blocks * block_bytes, place + block_bytes);
            entries.push(Entry { flags, at, len: len.try_into()?, data_at });
            place = data_at + if flags & DISCARD == 0 { len } else { 0 };
        }
        Ok(Self { file, entries })
    }

    /// Returns the first bytes of each entry's data, at most 64; none for zeroes.
    pub fn beginnings(&self) -> Result<Vec<Vec<u8>>> {
        let beginning = |entry: &Entry| {
            let mut bytes = vec![0; if entry.flags & DISCARD == 0 { entry.len.min(64) } else { 0 }];
            self.file.read_exact_at(&mut bytes, entry.data_at)?;
            Ok(bytes)
        };
        self.entries.iter().map(beginning).collect()
    }

    /// Returns `count` power losses between the entries `among`, in order, each as the cut and the seed for
    /// [`lose_power`](Self::lose_power): four of five right before a flush, when most data are unstable, the
    /// others anywhere.
    pub fn choices(&self, among: Range<usize>, count: usize) -> Vec<(usize, u64)> {
        let mut random = Rng::with_seed(count as u64);
        let each = |index: usize| {
            let (from, len) = (among.start + index * among.len() / count, among.len().div_ceil(count));
            let cut = random.usize(from..(from + len).min(among.end));
            let flush = self.entries[cut..among.end].iter().position(|entry| entry.flags & FLUSH != 0);
            (if index.is_multiple_of(5) { cut } else { cut + flush.unwrap_or(0) }, index as u64 % 6)
        };
        (0..count).map(each).collect()
    }

    /// Applies the log to a disk in its initial state, as if the power failed before entry `cut`: all that
    /// was flushed, and of the remainder everything (seed 0), nothing (seed 1), or parts.
    pub fn lose_power(&self, cut: usize, seed: u64, disk: &Path) -> Result<()> {
        let disk = File::options().write(true).open(disk)?;
        let entries = self.entries.get(..cut).ok_or("the log is shorter")?;
        let flushed = entries.iter().rposition(|entry| entry.flags & FLUSH != 0).unwrap_or(0);
        let mut random = Rng::with_seed((cut as u64) << 32 ^ seed);
        let chosen = random.usize(flushed..cut.max(flushed + 1));
        let kind = if seed < 2 { seed } else { random.u64(2..6) };
        for (index, entry) in entries.iter().enumerate() {
            let is_stable = index < flushed || entry.flags & FUA != 0;
            // Probability that a write, or each piece of it, is on the disk.
            let share = match kind {
                _ if is_stable => 1.0,
                0 => 1.0,
                1 => 0.0,
                2 => f64::from(u8::from(index == chosen)),
                3 => f64::from(u8::from(index != chosen)),
                _ => [0.1, 0.5, 0.9][random.usize(..3)],
            };
            let is_whole = share == 1.0 || share == 0.0 || random.bool();
            if is_whole && (share == 0.0 || random.f64() >= share) {
                continue;
            }
            let mut bytes = vec![0; entry.len];
            if entry.flags & DISCARD == 0 {
                self.file.read_exact_at(&mut bytes, entry.data_at)?;
            }
            if is_whole {
                disk.write_all_at(&bytes, entry.at)?;
                continue;
            }
            for (piece, bytes) in bytes.chunks(PIECE_BYTES).enumerate() {
                if random.f64() < share {
                    disk.write_all_at(bytes, entry.at + (piece * PIECE_BYTES) as u64)?;
                }
            }
        }
        Ok(())
    }
}
