//! What a worker knows of its part of the tree: what was acknowledged, and nothing else.

use std::collections::BTreeMap;

use tombolo_wire_nfs3::{FileHandleBuf, WriteVerifier};

/// A directory that stays, with what is in it.
#[derive(Debug)]
pub struct Dir {
    pub name: String,
    pub handle: FileHandleBuf,
    pub entries: BTreeMap<String, Entry>,
}

/// What a name leads to.
#[derive(Clone, Debug)]
pub enum Entry {
    /// A file, possibly with other names too.
    File(FileId),
    /// A symbolic link, and where it leads.
    Symlink(FileHandleBuf, String),
    /// An empty directory, which comes and goes.
    Dir(FileHandleBuf),
}

/// Which of a worker's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId(pub usize);

/// A file.
#[derive(Debug)]
pub struct File {
    pub handle: FileHandleBuf,
    /// How many names it has.
    pub names: u32,
    /// What the server has said to be on stable storage.
    stable: Vec<u8>,
    /// What it may forget when it dies, oldest first.
    pending: Vec<Pending>,
}

/// A write that is acknowledged, not committed, and so kept until it is.
#[derive(Clone, Debug)]
pub struct Pending {
    pub offset: usize,
    pub bytes: Vec<u8>,
    pub verifier: WriteVerifier,
}

impl File {
    /// An empty one with one name.
    pub const fn new(handle: FileHandleBuf) -> Self {
        Self { handle, names: 1, stable: Vec::new(), pending: Vec::new() }
    }

    /// What it must hold; `None` while a part of that is not committed.
    pub fn content(&self) -> Option<&[u8]> {
        self.pending.is_empty().then_some(&self.stable)
    }

    /// What is not committed.
    pub fn pending(&self) -> &[Pending] {
        &self.pending
    }

    /// A write was acknowledged as stable. Nothing may be pending, or an older write could be repeated over
    /// it.
    pub fn write_stable(&mut self, offset: usize, bytes: &[u8]) {
        assert!(self.pending.is_empty(), "a stable write over a pending one");
        apply(&mut self.stable, offset, bytes);
    }

    /// A write was acknowledged as unstable.
    pub fn write_unstable(&mut self, write: Pending) {
        self.pending.push(write);
    }

    /// The length was set, with nothing pending.
    pub fn truncate(&mut self, len: usize) {
        assert!(self.pending.is_empty(), "a truncation over a pending write");
        self.stable.resize(len, 0);
    }

    /// A COMMIT was acknowledged with this verifier. True if the server has lost nothing; if it may have, all
    /// that is pending must be written again, in order, as later writes lie over earlier ones.
    pub fn commit(&mut self, verifier: WriteVerifier) -> bool {
        if self.pending.iter().any(|write| write.verifier != verifier) {
            return false;
        }
        for write in std::mem::take(&mut self.pending) {
            apply(&mut self.stable, write.offset, &write.bytes);
        }
        true
    }

    /// Takes the pending writes out, to write them again.
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
