//! Marks that a guest leaves in the log of the disk that it works on: it writes them past its file system and
//! its cache, in places that belong to nothing else. All that a finished operation has written or flushed
//! stands before its mark, and all of the next one after it.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use crate::Result;
use crate::history::WORKERS;

/// What is written at once.
const BLOCK_BYTES: usize = 4096;
/// Each worker has its own place. The kernel makes one write of two that adjoin.
const PLACE_BYTES: usize = 4 * BLOCK_BYTES;
const MAGIC: &[u8; 16] = b"mark of a worker";

/// A worker's place for marks on a disk.
#[derive(Debug)]
pub struct Marks {
    disk: File,
    at: u64,
    /// Twice as large as a block: somewhere in it one begins as O_DIRECT wants it.
    memory: Vec<u8>,
}

impl Marks {
    /// Among those that begin at byte `at` of `disk`, a multiple of 4 KiB.
    pub fn open(disk: &Path, at: u64, worker: usize) -> Result<Self> {
        let flags = rustix::fs::OFlags::DIRECT.bits();
        let disk = File::options().write(true).custom_flags(flags.try_into()?).open(disk)?;
        let at = at + (worker * PLACE_BYTES) as u64;
        Ok(Self { disk, at, memory: vec![0; 2 * BLOCK_BYTES] })
    }

    /// Writes down that an operation has ended.
    pub fn ended(&mut self, worker: usize, number: usize) -> Result<()> {
        let begin = self.memory.as_ptr().align_offset(BLOCK_BYTES);
        let block = &mut self.memory[begin..begin + BLOCK_BYTES];
        block[..32].copy_from_slice(&encode(worker, number));
        Ok(self.disk.write_all_at(block, self.at)?)
    }
}

/// The places as they are before all work: not empty, as an image may keep no room for what is.
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

/// Worker and number, if these bytes begin with a mark.
fn decode(bytes: &[u8]) -> Option<(u64, u64)> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (words, _) = rest.as_chunks::<8>();
    Some((u64::from_le_bytes(*words.first()?), u64::from_le_bytes(*words.get(1)?)))
}

/// What `tombolo-power-loss check` wants to know: a line for each operation with its worker, its number, and
/// how many entries the log had before and after it. `data` are the first bytes of each entry.
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
