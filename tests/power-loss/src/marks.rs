//! Marks that a guest writes into the log of its disk, bypassing its file system and its cache, in reserved
//! blocks. All writes and flushes of a finished operation precede its mark in the log, and all of the next
//! operation follow it.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use crate::Result;
use crate::history::WORKERS;

/// Size of a write.
const BLOCK_BYTES: usize = 4096;
/// Distance between the workers' blocks, as the kernel merges adjacent writes.
const PLACE_BYTES: usize = 4 * BLOCK_BYTES;
const MAGIC: &[u8; 16] = b"mark of a worker";

/// A worker's block for marks on a disk.
#[derive(Debug)]
pub struct Marks {
    disk: File,
    at: u64,
    /// Twice the size of a block, so that it contains one aligned for O_DIRECT.
    memory: Vec<u8>,
}

impl Marks {
    /// Opens a worker's block among those from byte `at` of `disk`, a multiple of 4 KiB.
    pub fn open(disk: &Path, at: u64, worker: usize) -> Result<Self> {
        let flags = rustix::fs::OFlags::DIRECT.bits();
        let disk = File::options().write(true).custom_flags(flags.try_into()?).open(disk)?;
        let at = at + (worker * PLACE_BYTES) as u64;
        Ok(Self { disk, at, memory: vec![0; 2 * BLOCK_BYTES] })
    }

    /// Records that an operation has ended.
    pub fn ended(&mut self, worker: usize, number: usize) -> Result<()> {
        let begin = self.memory.as_ptr().align_offset(BLOCK_BYTES);
        let block = &mut self.memory[begin..begin + BLOCK_BYTES];
        block[..32].copy_from_slice(&encode(worker, number));
        Ok(self.disk.write_all_at(block, self.at)?)
    }
}

/// Returns the initial contents of the blocks: not empty, as an image may leave empty ones unallocated.
pub fn blank() -> Vec<u8> {
    vec![0xff; WORKERS * PLACE_BYTES]
}

fn encode(worker: usize, number: usize) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(MAGIC);
    bytes[16..24].copy_from_slice(&(worker as u64).to_le_bytes());
    bytes[24..].copy_from_slice(&(number as u64).to_le_bytes());
    bytes
}

/// Decodes worker and number, if these bytes begin with a mark.
fn decode(bytes: &[u8]) -> Option<(u64, u64)> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (words, _) = rest.as_chunks::<8>();
    Some((u64::from_le_bytes(*words.first()?), u64::from_le_bytes(*words.get(1)?)))
}

/// Returns the input of `tombolo-power-loss check`: a line for each operation with its worker, its number,
/// and the number of log entries before and after it. `data` are the first bytes of each entry.
pub fn times(data: impl Iterator<Item = Vec<u8>>) -> Result<Vec<String>> {
    let (mut begun, mut lines) = (HashMap::new(), Vec::new());
    for (index, bytes) in data.enumerate() {
        let Some((worker, number)) = decode(&bytes) else { continue };
        let (next, from) = begun.get(&worker).copied().unwrap_or_default();
        if number != next {
            return Err(format!("worker {worker} ended operation {number} and not {next}").into());
        }
        lines.push(format!("{worker} {number} {from} {}", index + 1));
        begun.insert(worker, (number + 1, index + 1));
    }
    Ok(lines)
}
