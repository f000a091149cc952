//! The sidecar of an image directory (`docs/formats/image.md`): a file beside the files of a VM that says of
//! each which blocks are zeroes, what the others hold (BLAKE3), what to do when it is read, and in which
//! order a start of the VM has read them.
//!
//! A codec without I/O. [`Sidecar`] is the head, which says all but the digests of blocks: these follow it, a
//! table for each file, and are read when they are wanted. Whoever writes a sidecar is a stranger: nothing is
//! allocated in proportion to a length that is only announced, and what it says of a file counts as long as
//! the file [is that version](ImageFile::is_of).
#![forbid(unsafe_code)]

mod codec;
mod zeros;

use std::ops::Range;

use thiserror::Error as ThisError;
use tombolo_core::fs::Timestamp;

pub use codec::{PREFIX_BYTES, head_bytes, sealed};
pub use zeros::ZeroMap;

/// The name of the sidecar in its directory.
pub const NAME: &str = ".tombolo-image";

/// What is read first of a VM's files: what machine it is.
pub const FIRST_FILE: &str = "vm.toml";

/// The longest head, in bytes.
pub const HEAD_BYTES_MAX: usize = 2 << 20;

/// So many files a sidecar speaks of at most.
pub const FILES_MAX: usize = 1024;

/// So many steps a trace has at most.
pub const STEPS_MAX: usize = 1 << 16;

/// The sizes that a block may have, in bytes: powers of two.
pub const BLOCK_BYTES: std::ops::RangeInclusive<u32> = 4 << 10..=1 << 20;

/// The length of a digest, in bytes.
pub const DIGEST_BYTES: usize = blake3::OUT_LEN;

/// A digest of BLAKE3.
pub type Digest = [u8; DIGEST_BYTES];

/// Makes a [`Digest`] of what comes in pieces.
pub use blake3::Hasher as Digester;

/// The digest of these bytes.
pub fn digest(bytes: &[u8]) -> Digest {
    *blake3::hash(bytes).as_bytes()
}

/// What a sidecar says, but for the digests of blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sidecar {
    /// The files, by their names in ascending order.
    pub files: Vec<ImageFile>,
    /// What a start has read, in order.
    pub trace: Vec<Step>,
}

/// A file of the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFile {
    /// Its name: 1 to 255 bytes without `/` and NUL.
    pub name: Vec<u8>,
    /// Its length, in bytes.
    pub size: u64,
    /// When its data were changed last. With the length it tells which version of the file this speaks of.
    pub mtime: Timestamp,
    /// The size of a block, in bytes; the last one ends with the file.
    pub block_bytes: u32,
    /// What to do when it is read.
    pub advice: Advice,
    /// The blocks that are zeroes. There may be others.
    pub zeros: ZeroMap,
    /// The digest of the table of digests, where there is one: of all blocks that are not in `zeros`, in
    /// order.
    pub table: Option<Digest>,
}

/// What to do when a file is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Advice {
    /// Bring what is asked for.
    #[default]
    OnDemand,
    /// Bring all of it.
    Whole,
}

/// A step of a trace: blocks of a file that were read one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Which of the files.
    pub file: u32,
    /// The first block.
    pub start: u64,
    /// How many.
    pub count: u64,
}

impl ImageFile {
    /// Whether it speaks of the version of this length and time.
    pub fn is_of(&self, size: u64, mtime: Timestamp) -> bool {
        (self.size, self.mtime) == (size, mtime)
    }

    /// How many blocks the file has.
    pub fn blocks(&self) -> u64 {
        self.size.div_ceil(self.block_bytes.into())
    }

    /// How many of them have a digest in a table.
    pub fn data_blocks(&self) -> u64 {
        self.blocks() - self.zeros.count()
    }

    /// Where these blocks lie in the file, in bytes.
    pub fn bytes_of(&self, blocks: Range<u64>) -> Range<u64> {
        let at = |block: u64| block.saturating_mul(self.block_bytes.into()).min(self.size);
        at(blocks.start)..at(blocks.end)
    }

    /// How much of the file is in `zeros`, in bytes.
    pub fn zero_bytes(&self) -> u64 {
        let len = |range: Range<u64>| range.end - range.start;
        self.zeros.runs().map(|run| len(self.bytes_of(run))).sum()
    }
}

impl Sidecar {
    /// What it says of the file of this name.
    pub fn file(&self, name: &[u8]) -> Option<&ImageFile> {
        let at = self.files.binary_search_by(|file| file.name.as_slice().cmp(name)).ok()?;
        self.files.get(at)
    }

    /// How many bytes the trace brings: those of blocks that are no zeroes.
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

    /// Where the tables of digests lie behind a head of this length, in bytes: of each file, where it has
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

/// Why bytes are no sidecar, or something cannot be said in one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ThisError)]
pub enum Malformed {
    /// It ends too early, or goes on behind its end.
    #[error("its length is not what it says")]
    Length,
    /// It does not begin as a sidecar does.
    #[error("it is no sidecar of an image")]
    Magic,
    /// It has a version that is not known here.
    #[error("it has version {0}, and only 1 is known")]
    Version(u32),
    /// It is damaged, or is being written.
    #[error("its digest does not hold")]
    Digest,
    /// A value that this place cannot have.
    #[error("it says what cannot be")]
    Value,
    /// More than a head holds.
    #[error("there is more to say than {HEAD_BYTES_MAX} bytes hold")]
    TooLarge,
}

type Result<T> = std::result::Result<T, Malformed>;
