//! Concurrent operations of several callers on the same names and blocks.
//!
//! Single replies cannot be predicted. But the creations and removals of a name determine whether it exists
//! at the end, which reveals operations executed twice or partly. A block read must hold its last write or a
//! concurrent one, never earlier data.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use tombolo_core::fs::{File, FileSystem, LockOwner, NodeId, Write};
use tombolo_core::{Ctx, Error, Result, Stability};
use tombolo_mem::{Buffer, Source};
use tombolo_nfs_client_tests::wire::{Rng, noise};
use tombolo_test_support::{mode, name as as_name, plain};

use crate::simulation::caller::{SESSION, World};

/// Names of directories that callers create and remove, and of the file whose blocks they write.
const DIRECTORIES: [&str; 3] = ["north", "east", "south"];
const FILE: &str = "blocks";
/// Number of blocks, whose length does not align with pages.
const BLOCKS: u64 = 6;
const BLOCK_BYTES: usize = 700;

/// State shared by all callers.
#[derive(Default)]
pub struct Shared(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// Creations less removals of each name, according to replies.
    made: BTreeMap<&'static str, i64>,
    /// Names with pending operations when the server restarted.
    unclear: Vec<&'static str>,
    /// Writes to each block, with tag and period. Times are event numbers.
    writes: BTreeMap<u64, Vec<Written>>,
    events: u64,
}

#[derive(Clone, Copy, Debug)]
struct Written {
    tag: u64,
    begun: u64,
    /// `None` while the operation is pending.
    ended: Option<u64>,
}

impl Shared {
    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.0.lock().expect("one thread")
    }

    fn event(&self) -> u64 {
        let mut known = self.known();
        known.events += 1;
        known.events
    }

    /// Verifies that the final names match the replies.
    pub fn check_end(&self, tree: &dyn FileSystem) {
        let known = self.known();
        for name in DIRECTORIES {
            let found = tree.lookup(&Ctx::root(SESSION), NodeId::ROOT, as_name(name)).wait().is_ok();
            let made = known.made.get(name).copied().unwrap_or_default();
            if !known.unclear.contains(&name) {
                assert_eq!(i64::from(found), made, "{name}: so often more made than removed, callers heard");
            }
        }
    }
}

/// One caller's share of the operations.
pub struct Sharer {
    world: World,
    fs: Arc<dyn FileSystem>,
    cx: Ctx,
    rng: Rng,
    shared: Arc<Shared>,
    file: File,
}

impl Sharer {
    /// Opens the file, creating it if it does not exist.
    pub async fn begin(world: World, fs: Arc<dyn FileSystem>, shared: Arc<Shared>, rng: Rng) -> Self {
        let cx = Ctx::root(SESSION);
        let created =
            fs.create(&cx, NodeId::ROOT, as_name(FILE), &plain()).resolve().await.expect("the file");
        let file = File { node: created.entry.node, open: created.open };
        Self { world, fs, cx, rng, shared, file }
    }

    /// Performs one operation.
    pub async fn step(&mut self) {
        match self.rng.below(4) {
            0 => self.mkdir().await,
            1 => self.rmdir().await,
            2 => self.write_block().await,
            _ => self.read_block().await,
        }
    }

    /// Closes the file.
    pub async fn end(self) {
        self.fs.flush(&self.cx, self.file, LockOwner(1)).resolve().await.expect("flushed");
        self.fs.release(&self.cx, self.file);
        self.fs.forget(&self.cx, &[(self.file.node, 1)]);
    }

    async fn mkdir(&mut self) {
        let name = *self.rng.pick(&DIRECTORIES);
        let starts = self.world.starts.load(Ordering::Relaxed);
        let made = self.fs.mkdir(&self.cx, NodeId::ROOT, as_name(name), mode(0o755)).resolve().await;
        self.world.network.note(100, || format!("shared client: mkdir of {name}: {made:?}"));
        if let Ok(made) = &made {
            self.fs.forget(&self.cx, &[(made.entry.node, 1)]);
        }
        self.count(name, starts, 1, made.map(drop), |error| matches!(error, Error::Exists));
    }

    async fn rmdir(&mut self) {
        let name = *self.rng.pick(&DIRECTORIES);
        let starts = self.world.starts.load(Ordering::Relaxed);
        let removed = self.fs.rmdir(&self.cx, NodeId::ROOT, as_name(name)).resolve().await;
        self.world.network.note(101, || format!("shared client: rmdir of {name}: {removed:?}"));
        self.count(name, starts, -1, removed.map(drop), |error| matches!(error, Error::NotFound));
    }

    fn count(&self, name: &'static str, starts: u64, by: i64, told: Result<()>, may: fn(&Error) -> bool) {
        let mut known = self.shared.known();
        if self.world.starts.load(Ordering::Relaxed) != starts {
            // The server has lost its reply cache: it may have executed this twice, with other calls in
            // between.
            known.unclear.push(name);
        }
        match told {
            Ok(()) => *known.made.entry(name).or_default() += by,
            // Executed with its reply lost, and the directory has been removed since.
            Err(Error::Stale) if by > 0 => *known.made.entry(name).or_default() += by,
            Err(error) if may(&error) => {}
            Err(error) => panic!("{name}: {error}"),
        }
    }

    async fn write_block(&mut self) {
        let block = self.rng.below(BLOCKS);
        let tag = self.rng.next_u64();
        let begun = self.shared.event();
        self.shared.known().writes.entry(block).or_default().push(Written { tag, begun, ended: None });
        self.world.network.note(102, || format!("shared client: writes {tag:x} to block {block}"));
        let stability = *self.rng.pick(&[Stability::Unstable, Stability::Unstable, Stability::FileSync]);
        let how =
            Write { offset: block * BLOCK_BYTES as u64, retainable: true, stability, ..Write::default() };
        let from = Source::from(noise(tag, BLOCK_BYTES));
        let written = self.fs.write(&self.cx, self.file, &how, from).resolve().await.expect("written");
        assert_eq!(written.count, BLOCK_BYTES);
        let ended = self.shared.event();
        let mut known = self.shared.known();
        let writes = known.writes.get_mut(&block).expect("it was begun");
        writes.iter_mut().filter(|write| write.tag == tag).for_each(|write| write.ended = Some(ended));
    }

    async fn read_block(&mut self) {
        let block = self.rng.below(BLOCKS);
        let begun = self.shared.event();
        let buffer = Buffer::new(BLOCK_BYTES);
        let into = buffer.sink(0..BLOCK_BYTES);
        let read = self.fs.read(&self.cx, self.file, block * BLOCK_BYTES as u64, into).resolve().await;
        let found = buffer.source(0..read.expect("read").count).to_vec(usize::MAX);
        let ended = self.shared.event();
        let writes = self.shared.known().writes.get(&block).cloned().unwrap_or_default();
        let was = writes.iter().find(|write| noise(write.tag, BLOCK_BYTES) == found);
        let tag = was.map(|write| write.tag);
        self.world.network.note(103, || format!("shared client: reads {tag:x?} from block {block}"));
        // A write can no longer be read if it ended before this read began and a later write has begun and
        // ended since.
        let is_over = |earlier: u64| {
            let covers = |later: &Written| later.begun > earlier && later.ended.is_some_and(|at| at < begun);
            writes.iter().any(covers)
        };
        match was {
            Some(write) => {
                assert!(write.begun < ended, "block {block}: read before it was written");
                assert!(
                    !write.ended.is_some_and(is_over),
                    "block {block}: {:x} was read, which was written over: {writes:x?}",
                    write.tag
                );
            }
            // Two READs with a WRITE between them: NFS does not promise more.
            None if writes
                .iter()
                .any(|write| write.begun < ended && write.ended.is_none_or(|at| at > begun)) => {}
            None => {
                assert!(
                    found.iter().all(|byte| *byte == 0),
                    "block {block}: torn, or never written: {writes:x?}"
                );
                assert!(
                    !is_over(0),
                    "block {block}: it was written, and reads as if it was not: {writes:x?}"
                );
            }
        }
    }
}
