//! A caller in a directory of its own: performs random operations and predicts each result.

mod data;
pub mod listing;
mod names;

use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use tombolo_core::fs::{Attr, Entry, File, FileSystem, FileType, Name, NodeId, OpenFlags};
use tombolo_core::{Ctx, Error, Result, SessionId};
use tombolo_mem::Buffer;
use tombolo_nfs_client_tests::wire::{Network, Rng};

use crate::simulation::disk::Disk;
use crate::simulation::model::{Id, Kind, Model};

/// The session that all callers use.
pub const SESSION: SessionId = SessionId(77);

/// State shared by callers.
#[derive(Clone)]
pub struct World {
    pub network: Network,
    /// The server's disk, for inspection.
    pub disk: Disk,
    /// Number of server starts.
    pub starts: Arc<AtomicU64>,
    /// Memory lent for writes, whose return is verified at the end.
    pub lent: Arc<Mutex<Vec<Buffer>>>,
}

/// A caller.
pub struct Caller {
    world: World,
    fs: Arc<dyn FileSystem>,
    cx: Ctx,
    rng: Rng,
    number: u64,
    root: NodeId,
    model: Model,
    open: Vec<Open>,
    /// Directories that may contain silly names of open files.
    not_empty: BTreeSet<Id>,
    /// Look-ups to be forgotten after this step.
    look_ups: Vec<(NodeId, u64)>,
    steps: u64,
    begun_at: u64,
}

/// An open file.
#[derive(Clone, Copy, Debug)]
struct Open {
    id: Id,
    file: File,
    flags: OpenFlags,
}

/// Names in a directory.
const NAMES: [&[u8]; 5] =
    [b"alpha", b"beta", b"gamma", b"delta", b"a name that is long enough to live elsewhere"];

impl Caller {
    /// Creates the caller's directory below `root`.
    pub async fn begin(world: World, fs: Arc<dyn FileSystem>, number: u64, rng: Rng) -> Self {
        let cx = Ctx::root(SESSION);
        let name = format!("caller-{number}");
        let name = Name::new(name.as_bytes()).expect("a name");
        let starts = world.starts.load(Ordering::Relaxed);
        let made = fs.mkdir(&cx, NodeId::ROOT, name, mode(0o755)).resolve().await;
        let entry = match made {
            Ok(made) => made.entry,
            // Created before the server lost its reply cache.
            Err(Error::Exists) if world.starts.load(Ordering::Relaxed) != starts => {
                fs.lookup(&cx, NodeId::ROOT, name).resolve().await.expect("it is there")
            }
            Err(error) => panic!("mkdir of {name}: {error}"),
        };
        Self {
            model: Model::new(entry.attr.fileid),
            root: entry.node,
            world,
            fs,
            cx,
            rng,
            number,
            open: Vec::new(),
            not_empty: BTreeSet::new(),
            look_ups: Vec::new(),
            steps: 0,
            begun_at: 0,
        }
    }

    /// Performs one operation.
    pub async fn step(&mut self) {
        self.steps += 1;
        self.begun_at = self.world.starts.load(Ordering::Relaxed);
        if self.rng.chance(100) {
            let pause = *self.rng.pick(&[1_000, 3_500_000, 70_000_000]);
            let pause = self.rng.between((Duration::ZERO, Duration::from_micros(pause)));
            self.world.network.sleep(pause).await;
        }
        match self.rng.below(24) {
            0..=3 => self.open_some().await,
            4..=6 => self.write().await,
            7 => self.write_several().await,
            8..=10 => self.read().await,
            11 => self.truncate().await,
            12 => self.fsync().await,
            13 | 14 => self.close().await,
            15 => self.rename().await,
            16 | 17 => self.remove().await,
            18 => self.mkdir().await,
            19 => self.link().await,
            20 => self.symlink().await,
            21 => self.list().await,
            22 => self.look().await,
            _ => self.chmod().await,
        }
        let look_ups = std::mem::take(&mut self.look_ups);
        self.fs.forget(&self.cx, &look_ups);
    }

    /// Closes everything; returns the expected final tree on the server.
    pub async fn end(mut self) -> Model {
        while !self.open.is_empty() {
            self.close().await;
        }
        self.fs.forget(&self.cx, &[(self.root, 1)]);
        self.model
    }

    fn note(&self, words: impl FnOnce() -> String) {
        let (number, steps) = (self.number, self.steps);
        self.world
            .network
            .note(number << 32 | steps, || format!("caller {number}, step {steps}: {}", words()));
    }

    /// Returns `true` if the server has restarted since this step began: earlier calls may then have been
    /// executed twice.
    fn may_be_twice(&self) -> bool {
        self.world.starts.load(Ordering::Relaxed) != self.begun_at
    }

    /// Returns the result of an operation, or `None` if the server found it already done after a restart.
    fn done<T>(&self, what: &str, result: Result<T>, is_done: impl Fn(&Error) -> bool) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) if is_done(&error) && self.may_be_twice() => None,
            Err(error) => panic!("{what}: {error}"),
        }
    }

    /// Walks from the caller's directory to one below it.
    async fn directory(&mut self, dir: Id) -> NodeId {
        let mut at = self.root;
        for name in self.model.path(dir) {
            at = self.entry(at, &name).await.unwrap_or_else(|error| panic!("a step of a walk: {error}")).node;
        }
        at
    }

    /// Looks a name up, for this step.
    async fn entry(&mut self, dir: NodeId, name: &[u8]) -> Result<Entry> {
        let name = Name::new(name)?;
        let entry = self.fs.lookup(&self.cx, dir, name).resolve().await?;
        self.look_ups.push((entry.node, 1));
        Ok(entry)
    }

    /// Asserts that attributes match the model.
    fn check_attr(&self, what: &str, id: Id, attr: &Attr) {
        let node = self.model.node(id);
        let (file_type, size) = match &node.kind {
            Kind::Directory(_) => (FileType::Directory, attr.size),
            Kind::File(content) => (FileType::Regular, content.len() as u64),
            Kind::Symlink(target) => (FileType::Symlink, target.len() as u64),
        };
        assert_eq!((attr.fileid, attr.file_type), (node.fileid, file_type), "{what}: the wrong node");
        assert_eq!(attr.size, size, "{what}: a wrong size");
        assert_eq!(attr.mode.bits(), node.mode, "{what}: a wrong mode");
        if file_type != FileType::Directory && node.links > 0 {
            assert_eq!(attr.nlink, node.links, "{what}: a wrong number of links");
        }
    }

    /// Returns a random directory.
    fn some_directory(&mut self) -> Id {
        let directories = self.model.directories();
        *self.rng.pick(&directories)
    }

    /// Returns a random directory and name, which may not exist.
    fn some_name(&mut self) -> (Id, &'static [u8]) {
        (self.some_directory(), *self.rng.pick(&NAMES))
    }

    /// Returns a random existing name of a suitable node.
    fn some_entry(&mut self, suits: impl Fn(&Kind) -> bool) -> Option<(Id, Vec<u8>, Id)> {
        let all: Vec<_> = self
            .model
            .directories()
            .into_iter()
            .flat_map(|dir| self.model.entries(dir).iter().map(move |(name, id)| (dir, name.clone(), *id)))
            .filter(|(_, _, id)| suits(&self.model.node(*id).kind))
            .collect();
        (!all.is_empty()).then(|| self.rng.pick(&all).clone())
    }

    /// Verifies a node's attributes, by name or through an opening.
    async fn look(&mut self) {
        if !self.open.is_empty() && self.rng.chance(500) {
            let open = *self.rng.pick(&self.open);
            self.note(|| format!("getattr of {open:?}"));
            let attr = self.fs.getattr(&self.cx, open.file.node, Some(open.file)).resolve().await;
            return self.check_attr("getattr of an open file", open.id, &attr.expect("attributes"));
        }
        let (dir, name) = self.some_name();
        self.note(|| format!("lookup of {} in {dir}", name.escape_ascii()));
        let node = self.directory(dir).await;
        match (self.model.find(dir, name), self.entry(node, name).await) {
            (None, Err(Error::NotFound)) => {}
            (Some(id), Ok(entry)) => {
                self.check_attr("a lookup", id, &entry.attr);
                let attr = self.fs.getattr(&self.cx, entry.node, None).resolve().await.expect("attributes");
                self.check_attr("getattr", id, &attr);
                if let Kind::Symlink(target) = self.model.node(id).kind.clone() {
                    let read = self.fs.readlink(&self.cx, entry.node).resolve().await.expect("a target");
                    assert_eq!(read, target);
                }
            }
            (expected, found) => panic!("lookup of {}: {found:?}, not {expected:?}", name.escape_ascii()),
        }
    }
}

/// Returns a mode without a umask.
pub fn mode(bits: u32) -> tombolo_core::fs::NewMode {
    tombolo_core::fs::NewMode::settled(tombolo_core::fs::Mode::new(bits))
}

/// Polls all futures concurrently and returns their results.
async fn all<T>(mut futures: Vec<Pin<Box<dyn Future<Output = T> + Send + '_>>>) -> Vec<T> {
    let mut results: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (future, result) in futures.iter_mut().zip(&mut results) {
            if result.is_none()
                && let Poll::Ready(ready) = future.as_mut().poll(context)
            {
                *result = Some(ready);
            }
        }
        if results.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results.into_iter().flatten().collect()
}
