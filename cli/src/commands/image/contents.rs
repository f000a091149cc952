//! Contents of files: zero blocks and digests.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};
use std::thread;

use indicatif::ProgressBar;
use tombolo_core::lock;
use tombolo_sys::{Errno, ranges};
use tombolo_wire_image::{Digest, ZeroMap, digest};

/// A file being scanned.
pub struct Scanned {
    pub file: File,
    pub size_bytes: u64,
}

/// Contents of one file by blocks: those of zeroes, and digests of the others.
#[derive(Default)]
pub struct Contents {
    pub zeros: ZeroMap,
    /// Digests of all other blocks, in order; empty if the scan makes none.
    pub digests: Vec<Digest>,
}

/// Parameters of a scan.
pub struct Scan<'a> {
    pub block_bytes: u64,
    pub makes_digests: bool,
    /// Maximum number of digests in memory.
    pub digests_max: usize,
    pub jobs: usize,
    pub bar: &'a ProgressBar,
}

/// Contents of a part of a file, in blocks.
struct Part {
    blocks: Range<u64>,
    zeros: Vec<u64>,
    digests: Vec<Digest>,
}

/// Size of a read, a multiple of every valid block size.
const PART_BYTES: u64 = 4 << 20;

/// Progress of a scan, shared by its threads.
struct ScanProgress {
    /// File index and offset of the next part.
    next: (usize, u64),
    /// Scanned parts of each file, in any order.
    parts: Vec<Vec<Part>>,
    /// Number of digests in `parts`.
    digests: usize,
    /// File index and reason of the first failure.
    failed: Option<(usize, io::Error)>,
}

impl Scan<'_> {
    /// Scans all files concurrently. Holes are not read.
    ///
    /// # Errors
    /// The index of a file that cannot be read, or with which the digests exceed `digests_max`, and the
    /// reason.
    pub fn of(&self, files: &[Scanned]) -> Result<Vec<Contents>, (usize, io::Error)> {
        let parts = files.iter().map(|_| Vec::new()).collect();
        let shared = Mutex::new(ScanProgress { next: (0, 0), parts, digests: 0, failed: None });
        thread::scope(|scope| {
            for _ in 0..self.jobs {
                scope.spawn(|| self.work(files, &shared));
            }
        });
        let shared = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(failed) = shared.failed {
            return Err(failed);
        }
        let all = files.iter().zip(shared.parts);
        Ok(all.map(|(file, parts)| joined(file.size_bytes.div_ceil(self.block_bytes), parts)).collect())
    }

    fn work(&self, files: &[Scanned], shared: &Mutex<ScanProgress>) {
        let mut buffer = vec![0; PART_BYTES as usize];
        loop {
            let Some((index, range)) = self.next_part(files, shared) else { return };
            let Some(file) = files.get(index) else { return };
            let bytes = buffer.get_mut(..(range.end - range.start) as usize).unwrap_or_default();
            let read = file.file.read_exact_at(bytes, range.start);
            let part = read.map(|()| self.look_at(range.start / self.block_bytes, bytes));
            let mut shared = lock(shared);
            match part {
                Ok(part) => {
                    shared.digests += part.digests.len();
                    if shared.digests > self.digests_max {
                        let error = io::Error::other("too many blocks for the digests of a sidecar");
                        shared.failed.get_or_insert((index, error));
                    }
                    if let Some(parts) = shared.parts.get_mut(index) {
                        parts.push(part);
                    }
                }
                Err(error) => drop(shared.failed.get_or_insert((index, error))),
            }
        }
    }

    /// Returns the next part that may contain data, assigned to this thread; `None` after the last one or a
    /// failure.
    fn next_part(&self, files: &[Scanned], shared: &Mutex<ScanProgress>) -> Option<(usize, Range<u64>)> {
        let mut shared = lock(shared);
        loop {
            let (index, offset) = shared.next;
            let file = files.get(index).filter(|_| shared.failed.is_none())?;
            let data = match ranges::next_data(file.file.as_fd(), offset) {
                Ok(data) => data,
                Err(Errno::NXIO) => file.size_bytes,
                // The file system does not report holes.
                Err(_) => offset,
            };
            let start = (data / self.block_bytes * self.block_bytes).max(offset);
            let end = start.saturating_add(PART_BYTES).min(file.size_bytes);
            self.bar.inc(end.max(start).min(file.size_bytes).saturating_sub(offset));
            if start < file.size_bytes {
                shared.next = (index, end);
                return Some((index, start..end));
            }
            shared.next = (index + 1, 0);
        }
    }

    fn look_at(&self, first: u64, bytes: &[u8]) -> Part {
        let zero = vec![0; self.block_bytes as usize];
        let mut part = Part { blocks: first..first, zeros: Vec::new(), digests: Vec::new() };
        for block in bytes.chunks(self.block_bytes as usize) {
            if zero.starts_with(block) {
                part.zeros.push(part.blocks.end);
            } else if self.makes_digests {
                part.digests.push(digest(block));
            }
            part.blocks.end += 1;
        }
        part
    }
}

/// Joins the parts of a file. Blocks in no part are holes.
fn joined(blocks: u64, mut parts: Vec<Part>) -> Contents {
    parts.sort_unstable_by_key(|part| part.blocks.start);
    let (mut contents, mut at) = (Contents::default(), 0);
    // Only empty ranges are refused: the parts are in order and share no block.
    let mut is_zero = |blocks: Range<u64>| _ = contents.zeros.add(blocks);
    for part in parts {
        is_zero(at..part.blocks.start);
        part.zeros.into_iter().for_each(|block| is_zero(block..block + 1));
        contents.digests.extend(part.digests);
        at = part.blocks.end;
    }
    is_zero(at..blocks);
    contents
}
