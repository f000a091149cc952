//! A worker's model of its part of the tree: acknowledged operations only.

use std::collections::BTreeMap;

use tombolo_wire_nfs3::{FileHandleBuf, WriteVerifier};

/// A permanent directory, with its entries.
#[derive(Debug)]
pub struct Dir {
    pub name: String,
    pub handle: FileHandleBuf,
    pub entries: BTreeMap<String, Entry>,
}

/// The node behind a name.
#[derive(Clone, Debug)]
pub enum Entry {
    /// A file, possibly with other names too.
    File(FileId),
    /// A symbolic link, with its target.
    Symlink(FileHandleBuf, String),
    /// An empty directory, created and removed by the load.
    Dir(FileHandleBuf),
}

/// Index of a worker's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId(pub usize);

/// A file.
#[derive(Debug)]
pub struct File {
    pub handle: FileHandleBuf,
    /// Number of its names.
    pub names: u32,
    /// Content that the server acknowledged as stable.
    stable: Vec<u8>,
    /// Writes that the server may lose when it dies, oldest first.
    pending: Vec<Pending>,
}

/// An acknowledged but uncommitted write, retained until committed.
#[derive(Clone, Debug)]
pub struct Pending {
    pub offset: usize,
    pub bytes: Vec<u8>,
    pub verifier: WriteVerifier,
}

impl File {
    /// Creates an empty file with one name.
    pub const fn new(handle: FileHandleBuf) -> Self {
        Self { handle, names: 1, stable: Vec::new(), pending: Vec::new() }
    }

    /// Returns its required content; `None` while writes are uncommitted.
    pub fn content(&self) -> Option<&[u8]> {
        self.pending.is_empty().then_some(&self.stable)
    }

    /// Returns the uncommitted writes.
    pub fn pending(&self) -> &[Pending] {
        &self.pending
    }

    /// Applies a write acknowledged as stable. Nothing may be pending, or an older write could be repeated
    /// over it.
    pub fn write_stable(&mut self, offset: usize, bytes: &[u8]) {
        assert!(self.pending.is_empty(), "a stable write over a pending one");
        apply(&mut self.stable, offset, bytes);
    }

    /// Adds a write acknowledged as unstable.
    pub fn write_unstable(&mut self, write: Pending) {
        self.pending.push(write);
    }

    /// Sets the length, with nothing pending.
    pub fn truncate(&mut self, len: usize) {
        assert!(self.pending.is_empty(), "a truncation over a pending write");
        self.stable.resize(len, 0);
    }

    /// Applies a COMMIT acknowledged with this verifier. Returns `true` if the server has lost nothing;
    /// otherwise all pending writes must be repeated in order, as they may overlap.
    pub fn commit(&mut self, verifier: WriteVerifier) -> bool {
        if self.pending.iter().any(|write| write.verifier != verifier) {
            return false;
        }
        for write in std::mem::take(&mut self.pending) {
            apply(&mut self.stable, write.offset, &write.bytes);
        }
        true
    }

    /// Takes the pending writes, to repeat them.
    pub fn take_pending(&mut self) -> Vec<Pending> {
        std::mem::take(&mut self.pending)
    }
}

fn apply(content: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[offset..end].copy_from_slice(bytes);
}
