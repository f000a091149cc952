//! The sidecar of an image directory (`docs/formats/image.md`): for each of a VM's files the blocks that are
//! zeroes, digests (BLAKE3) of the others, a read-ahead policy, and the trace of a VM's start.
//!
//! A codec without I/O. [`Sidecar`] is the head, with everything but the digests of blocks: these follow it,
//! in a table for each file that has one, and are read when required. The author of a sidecar is untrusted:
//! nothing is allocated in proportion to an announced length, and information about a file applies only while
//! the file [is that version](ImageFile::is_of).
#![forbid(unsafe_code)]

mod codec;
mod zeros;

use std::ops::Range;

use thiserror::Error as ThisError;
use tombolo_core::fs::Timestamp;

pub use codec::{PREFIX_BYTES, head_bytes, sealed};
pub use zeros::ZeroMap;

/// Name of the sidecar in the directory that it describes.
pub const NAME: &str = ".tombolo-image";

/// Name of the file of a VM that is read first: the description of the machine.
pub const FIRST_FILE: &str = "vm.toml";

/// Maximum length of a head, in bytes.
pub const HEAD_BYTES_MAX: usize = 2 << 20;

/// Maximum number of files in a sidecar.
pub const FILES_MAX: usize = 1024;

/// Maximum number of steps of a trace.
pub const STEPS_MAX: usize = 1 << 16;

/// Allowed block sizes, in bytes: powers of two.
pub const BLOCK_BYTES: std::ops::RangeInclusive<u32> = 4 << 10..=1 << 20;

/// Length of a digest, in bytes.
pub const DIGEST_BYTES: usize = blake3::OUT_LEN;

/// A BLAKE3 digest.
pub type Digest = [u8; DIGEST_BYTES];

/// Incremental computation of a [`Digest`].
pub use blake3::Hasher as Digester;

/// Returns the digest of these bytes.
pub fn digest(bytes: &[u8]) -> Digest {
    *blake3::hash(bytes).as_bytes()
}

/// The contents of a sidecar, except the digests of blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sidecar {
    /// Files, in ascending order of names.
    pub files: Vec<ImageFile>,
    /// Reads during a start of the VM, in order, which a cache repeats in advance.
    pub trace: Vec<Step>,
}

/// The description of one file of the directory, valid for one version of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFile {
    /// Name: 1 to 255 bytes without `/` and NUL.
    pub name: Vec<u8>,
    /// Length of the described version of the file, in bytes.
    pub size: u64,
    /// Modification time. Identifies, together with the length, the described version of the file.
    pub mtime: Timestamp,
    /// Block size, in bytes; the last block ends with the file.
    pub block_bytes: u32,
    /// Amount of the file that a cache fetches when any of it is read.
    pub advice: Advice,
    /// Blocks that are known to be zeroes. There may be others.
    pub zeros: ZeroMap,
    /// Digest of the table of digests, if there is one; the table covers all blocks that are not in `zeros`,
    /// in order.
    pub table: Option<Digest>,
}

/// The read-ahead policy of a file, chosen by the author of the sidecar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Advice {
    /// Fetch only parts that are requested.
    #[default]
    OnDemand,
    /// Fetch the whole file when any of it is read.
    Whole,
}

/// A step of a trace: consecutive blocks of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Index of the file in [`Sidecar::files`].
    pub file: u32,
    /// Number of the first block that was read.
    pub start: u64,
    /// Number of consecutive blocks; at least 1.
    pub count: u64,
}

impl ImageFile {
    /// Returns `true` if the description applies to the version of this length and time.
    pub fn is_of(&self, size: u64, mtime: Timestamp) -> bool {
        (self.size, self.mtime) == (size, mtime)
    }

    /// Returns the number of blocks.
    pub fn blocks(&self) -> u64 {
        self.size.div_ceil(self.block_bytes.into())
    }

    /// Returns the number of blocks with a digest in a table: those not known to be zeroes.
    pub fn data_blocks(&self) -> u64 {
        self.blocks() - self.zeros.count()
    }

    /// Returns the byte range of these blocks in the file.
    pub fn bytes_of(&self, blocks: Range<u64>) -> Range<u64> {
        let at = |block: u64| block.saturating_mul(self.block_bytes.into()).min(self.size);
        at(blocks.start)..at(blocks.end)
    }

    /// Returns the number of bytes in blocks that are known to be zeroes.
    pub fn zero_bytes(&self) -> u64 {
        let len = |range: Range<u64>| range.end - range.start;
        self.zeros.runs().map(|run| len(self.bytes_of(run))).sum()
    }
}

impl Sidecar {
    /// Returns the description of the file with this name, if there is one.
    pub fn file(&self, name: &[u8]) -> Option<&ImageFile> {
        let at = self.files.binary_search_by(|file| file.name.as_slice().cmp(name)).ok()?;
        self.files.get(at)
    }

    /// Returns the number of bytes to be fetched for the trace: those of its blocks that are not known to be
    /// zeroes.
    pub fn trace_bytes(&self) -> u64 {
        let len = |range: Range<u64>| range.end - range.start;
        let of_step = |step: &Step| {
            let file = self.files.get(step.file as usize)?;
            let blocks = step.start..step.start.saturating_add(step.count);
            let zeros: u64 = file.zeros.within(blocks.clone()).map(|run| len(file.bytes_of(run))).sum();
            Some(len(file.bytes_of(blocks)) - zeros)
        };
        self.trace.iter().filter_map(of_step).sum()
    }

    /// Returns the byte ranges of the tables of digests behind a head of this length, for each file that has
    /// one.
    pub fn tables(&self, head_bytes: usize) -> Vec<Option<Range<u64>>> {
        let mut at = head_bytes as u64;
        let table = |file: &ImageFile| {
            file.table?;
            let start = at;
            at = at.saturating_add(file.data_blocks().saturating_mul(DIGEST_BYTES as u64));
            Some(start..at)
        };
        self.files.iter().map(table).collect()
    }
}

/// The reason why bytes are not a sidecar, or why a sidecar cannot be encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ThisError)]
pub enum Malformed {
    /// Truncated, longer than stated, or of a length that no head has.
    #[error("wrong length")]
    Length,
    /// Wrong magic bytes.
    #[error("not an image sidecar")]
    Magic,
    /// Unsupported version.
    #[error("version {0} is not supported, expected 1")]
    Version(u32),
    /// Damaged, or being written.
    #[error("digest mismatch")]
    Digest,
    /// An invalid value.
    #[error("invalid value")]
    Value,
    /// Exceeds the capacity of a head.
    #[error("longer than the maximum of {HEAD_BYTES_MAX} bytes")]
    TooLarge,
}

type Result<T> = std::result::Result<T, Malformed>;
