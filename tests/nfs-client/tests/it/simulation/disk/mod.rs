//! A disk that loses unstable data.
//!
//! A layer over a file system in memory: unstable writes are answered as unstable, and the layer retains the
//! previous stable content of each such file. A power failure restores that content and then
//! repeats stable writes, and some unstable ones, block by block, as disks do.
//!
//! Names and attributes are stable when they are answered, as the server promises.

mod session;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tombolo_back_memory::Memory;
use tombolo_core::fs::{
    Client, Export, File, FileSystem, NodeId, OpenFlags, PermissionCheck, SetAttr, Write,
};
use tombolo_core::{Ctx, Result, SessionId};
use tombolo_mem::{Buffer, Source};
use tombolo_nfs_client_tests::wire::Rng;

use session::Session;

/// Unit of atomic writes.
const BLOCK_BYTES: usize = 512;

/// Session for inspection and restoration.
const OWN_SESSION: SessionId = SessionId(u64::MAX - 1);

/// A file system in memory that can lose unstable data.
#[derive(Clone)]
pub struct Disk(Arc<Shared>);

pub(crate) struct Shared {
    memory: Memory,
    /// A session that can access all files.
    own: Arc<dyn FileSystem>,
    /// The files that have unstable writes. Node numbers of the memory are inode numbers, the same in all
    /// sessions.
    unsettled: Mutex<BTreeMap<NodeId, Unsettled>>,
}

/// A file, and what happened to it since it was stable.
#[derive(Debug)]
struct Unsettled {
    stable: Vec<u8>,
    since: Vec<Step>,
}

#[derive(Debug)]
enum Step {
    Write { offset: usize, bytes: Vec<u8>, is_stable: bool },
    Size(usize),
}

impl Disk {
    /// Creates an empty disk.
    pub fn new() -> Self {
        let memory = Memory::default();
        let client =
            Client { session: OWN_SESSION, label: "the disk".into(), checks: PermissionCheck::Caller };
        let own = memory.attach(&client).expect("memory takes any client");
        Self(Arc::new(Shared { memory, own, unsettled: Mutex::default() }))
    }

    /// Returns the current tree, for inspection.
    pub fn tree(&self) -> Arc<dyn FileSystem> {
        self.0.own.clone()
    }

    /// Returns the content of a file after a power failure that loses as much as possible.
    pub fn surely(&self, file: NodeId) -> Option<Vec<u8>> {
        match self.0.unsettled().get(&file) {
            Some(unsettled) => Some(unsettled.after_failure(|| true)),
            None => self.0.content(file).ok(),
        }
    }

    /// Simulates a power failure that loses `lost` thousandths of the unstable blocks.
    pub fn fail(&self, lost: u32, rng: &mut Rng) {
        let unsettled = std::mem::take(&mut *self.0.unsettled());
        for (file, unsettled) in unsettled {
            let left = unsettled.after_failure(|| rng.chance(lost));
            // Fails for removed files, which need no restoration.
            let _ = self.0.put_back(file, &left);
        }
    }
}

impl Export for Disk {
    fn attach(&self, client: &Client) -> Result<Arc<dyn FileSystem>> {
        let inner = self.0.memory.attach(client)?;
        Ok(Arc::new(Session { inner, shared: self.0.clone() }))
    }
}

impl Shared {
    fn unsettled(&self) -> MutexGuard<'_, BTreeMap<NodeId, Unsettled>> {
        self.unsettled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a file's stable content before its first unstable write.
    fn before_unstable(&self, file: NodeId) -> Result<()> {
        let mut unsettled = self.unsettled();
        if let Entry::Vacant(vacant) = unsettled.entry(file) {
            vacant.insert(Unsettled { stable: self.content(file)?, since: Vec::new() });
        }
        Ok(())
    }

    fn after(&self, file: NodeId, step: impl FnOnce() -> Step) {
        if let Some(unsettled) = self.unsettled().get_mut(&file) {
            unsettled.since.push(step());
        }
    }

    fn is_settled(&self, file: NodeId) {
        self.unsettled().remove(&file);
    }

    fn all_are_settled(&self) {
        self.unsettled().clear();
    }

    fn content(&self, node: NodeId) -> Result<Vec<u8>> {
        self.with_open(node, OpenFlags::READ | OpenFlags::NO_ACCESS_TIME, |cx, file| {
            let size = self.own.getattr(cx, node, Some(file)).wait()?.size as usize;
            let mut buffer = Buffer::new(size.max(1));
            let done = self.own.read(cx, file, 0, buffer.sink(0..size)).wait()?;
            let bytes = buffer.as_slice().expect("it is not held");
            Ok(bytes[..done.count].to_vec())
        })
    }

    fn put_back(&self, node: NodeId, bytes: &[u8]) -> Result<()> {
        self.with_open(node, OpenFlags::WRITE, |cx, file| {
            let attr = self.own.getattr(cx, node, Some(file)).wait()?;
            let size = SetAttr { size: Some(bytes.len() as u64), ..SetAttr::default() };
            self.own.setattr(cx, node, Some(file), &size).wait()?;
            self.own.write(cx, file, &Write::default(), Source::from(bytes.to_vec())).wait()?;
            // The inode's times were perhaps not written either.
            let time = tombolo_core::fs::SetTime::At(attr.mtime);
            let times = SetAttr { mtime: Some(time), ..SetAttr::default() };
            self.own.setattr(cx, node, Some(file), &times).wait()?;
            Ok(())
        })
    }

    fn with_open<T>(
        &self,
        node: NodeId,
        flags: OpenFlags,
        act: impl FnOnce(&Ctx, File) -> Result<T>,
    ) -> Result<T> {
        let cx = Ctx::root(OWN_SESSION);
        let handles = self.own.persistent_handles().expect("memory has handles");
        // A session may use only nodes that it has resolved, so this builds the node's handle: the root's,
        // with another inode number.
        let mut handle = handles.handle_of(&cx, NodeId::ROOT).wait()?;
        let inode = handle.bytes.len() - size_of::<u64>();
        handle.bytes[inode..].copy_from_slice(&node.0.to_le_bytes());
        handles.resolve(&cx, &handle).wait()?;
        let opened = self.own.open(&cx, node, flags).wait();
        let outcome = opened.and_then(|opened| {
            let file = File { node, open: opened.open };
            let outcome = act(&cx, file);
            self.own.release(&cx, file);
            outcome
        });
        self.own.forget(&cx, &[(node, 1)]);
        outcome
    }
}

impl Unsettled {
    /// Returns the file's content after losing the unstable blocks selected by `is_lost`.
    fn after_failure(&self, mut is_lost: impl FnMut() -> bool) -> Vec<u8> {
        let mut left = self.stable.clone();
        for step in &self.since {
            match step {
                Step::Size(size) => left.resize(*size, 0),
                Step::Write { offset, bytes, is_stable } => {
                    let mut at = *offset;
                    let mut rest = bytes.as_slice();
                    while !rest.is_empty() {
                        let (block, behind) = rest.split_at(rest.len().min(BLOCK_BYTES - at % BLOCK_BYTES));
                        if *is_stable || !is_lost() {
                            left.resize(left.len().max(at + block.len()), 0);
                            left[at..at + block.len()].copy_from_slice(block);
                        }
                        at += block.len();
                        rest = behind;
                    }
                }
            }
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use tombolo_core::Stability;
    use tombolo_core::fs::SyncScope;

    use super::*;

    #[test]
    fn a_crash_loses_unstable_data_only() {
        let disk = Disk::new();
        let session = tombolo_test_support::Session::attach(&disk);
        let file = session.file("file");
        let write = |stability, offset, bytes: &[u8]| {
            let how = Write { offset, stability, ..Write::default() };
            let written = session.write_as(file, &how, bytes).expect("written");
            assert_eq!(written.stability, stability);
        };
        write(Stability::Unstable, 0, b"lost");
        session.fs.fsync(&session.cx, file, SyncScope::All).wait().expect("synced");
        write(Stability::Unstable, 4, b" and found");
        write(Stability::FileSync, 14, b" kept");
        assert_eq!(disk.surely(file.node).expect("there"), b"lost\0\0\0\0\0\0\0\0\0\0 kept");
        disk.fail(1000, &mut Rng::new(1));
        assert_eq!(disk.0.content(file.node).expect("there"), b"lost\0\0\0\0\0\0\0\0\0\0 kept");
        write(Stability::Unstable, 4, b" and found");
        disk.fail(0, &mut Rng::new(1));
        assert_eq!(disk.0.content(file.node).expect("there"), b"lost and found kept");
    }
}
