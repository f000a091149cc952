//! Copying files and trees, from any tree to any tree.
//!
//! A [`Copier`] walks the sources depth first and keeps a bounded number of files under way, on a few
//! threads: what costs a small file is round trips, so those of many files overlap. A small file is read,
//! made under its own name and written, in two round trips to a server (three when attributes are preserved).
//! A large one is read and written in pieces, many at a time, straight from the buffer that it was read into;
//! it arrives under the name `.NAME.tombolo-part` and is renamed when it is complete. So does every file that
//! takes the place of another.
//!
//! **Resuming.** A part says how much of it can be relied on, and of which version of its source, in a time
//! that no program needs meanwhile: see [`mark`]. That is written every few seconds, and when a copy is
//! stopped, after what precedes it was made stable; so a copy may be resumed after the end of this process,
//! of the server, or of either machine. A part whose mark does not fit is begun anew. A directory that is
//! made as the copy of a source under another name says which source it is of until it is complete: a later
//! copy can tell that from a directory to copy into.
//!
//! Not here: which name a copy gets when the target is a directory (the caller decides), deleting what the
//! source does not have, comparing contents.
//!
//! Reading order: this file, `walk`, `entry`, `small`, `large`; `mark`, `attributes`, `links` are rules of
//! their own.

mod attributes;
mod claims;
mod directory;
mod entry;
mod event;
mod large;
mod links;
mod mark;
mod measure;
mod part;
mod prefix;
mod small;
mod special;
mod tally;
mod transfer;
mod walk;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tombolo_core::Stability;
use tombolo_core::fs::NameBuf;

use crate::buffer_pool::BufferPool;
use crate::node::Node;
use crate::run::{Group, Permit, Permits, Spawner, ThreadPool, block_on};

use claims::Claims;
use directory::{Directory, Entered};
pub use event::{Event, Failure, Observer, Step};
use links::Links;
pub use measure::measure;
pub use part::{part_name, unfinished_name};
use tally::Counters;
pub use tally::Tally;

/// How to copy.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Files under way at once.
    pub jobs: usize,
    /// Threads that read, write and send.
    pub threads: usize,
    /// What may be in memory at once, in bytes.
    pub window_bytes: usize,
    /// Copy directories with what is in them, and links and special files as what they are.
    pub recursive: bool,
    /// Keep modes, owners (as far as the user may), times, and which names are of one file.
    pub preserve: bool,
    /// What to do about files that exist.
    pub existing: Existing,
    /// Go on with parts that an earlier copy left, and leave out files that are there with the same size and
    /// time.
    pub resume: bool,
    /// What becomes of zeros.
    pub holes: Holes,
    /// How stable a small file is before it counts as written. A server that writes it at once saves a round
    /// trip for the commit; where each file would wait for a disk, `Unstable` is what cp(1) does.
    pub small_files: Stability,
    /// Tell of each thing that is copied ([`Event::Copied`]).
    pub tell_each: bool,
}

/// What to do about files that exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Existing {
    /// Replace them, each at once and only when its replacement is complete.
    #[default]
    Replace,
    /// Leave them.
    Keep,
}

/// What becomes of zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Holes {
    /// Holes stay holes where the source's file system says where they are.
    #[default]
    AsTheyAre,
    /// Blocks of zeros become holes as well.
    Make,
    /// Everything is written.
    Fill,
}

impl Default for Options {
    /// 64 files on two threads, 64 MiB, plain files only.
    fn default() -> Self {
        Self {
            jobs: 64,
            threads: 2,
            window_bytes: 64 << 20,
            recursive: false,
            preserve: false,
            existing: Existing::default(),
            resume: false,
            holes: Holes::default(),
            small_files: Stability::Unstable,
            tell_each: false,
        }
    }
}

/// What is read or written by one operation, in bytes. A file of at most so many is a small one.
pub const PIECE_BYTES: usize = 1 << 20;

const WALKERS: usize = 16;

/// The unit of the window.
const WINDOW_UNIT_BYTES: usize = 64 << 10;

/// A copy that is under way. Dropping it ends it where it is.
#[derive(Debug)]
pub struct Copier {
    work: Arc<Work>,
    pool: ThreadPool,
}

struct Work {
    options: Options,
    observer: Arc<dyn Observer>,
    spawner: Spawner,
    all: Group,
    files: Permits,
    walkers: Permits,
    window: Permits,
    buffers: BufferPool,
    counters: Counters,
    links: Links,
    claims: Claims,
    entered: Entered,
    stopped: AtomicBool,
    /// Owners cannot be kept at the target: it was tried.
    owners_refused: AtomicBool,
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work").field("options", &self.options).field("tally", &self.counters.tally()).finish()
    }
}

/// What is to be copied.
#[derive(Debug)]
pub struct From {
    /// The file, directory or link.
    pub node: Node,
    /// What to call it in reports.
    pub path: Vec<u8>,
}

/// Where to.
#[derive(Debug)]
pub struct To {
    /// The directory.
    pub dir: Node,
    /// The name in it.
    pub name: NameBuf,
    /// What to call the directory in reports.
    pub dir_path: Vec<u8>,
    /// Where the copy is a directory that is made for it: an empty file of this name lies in it for as long
    /// as something is missing that could be resumed, see [`unfinished_name`].
    pub unfinished: Option<NameBuf>,
}

impl Copier {
    /// Starts the threads; nothing is copied yet.
    pub fn start(options: Options, observer: Arc<dyn Observer>) -> io::Result<Self> {
        let pool = ThreadPool::start(options.threads)?;
        let work = Work {
            options,
            observer,
            spawner: pool.spawner(),
            all: Group::default(),
            files: Permits::new(options.jobs),
            walkers: Permits::new(WALKERS),
            window: Permits::new(options.window_bytes.div_ceil(WINDOW_UNIT_BYTES)),
            buffers: BufferPool::new(options.window_bytes),
            counters: Counters::default(),
            links: Links::default(),
            claims: Claims::default(),
            entered: Entered::default(),
            stopped: AtomicBool::new(false),
            owners_refused: AtomicBool::new(false),
        };
        Ok(Self { work: Arc::new(work), pool })
    }

    /// Begins to copy one more.
    pub fn add(&self, from: From, to: To) {
        let From { node, path } = from;
        let To { dir, name, dir_path, unfinished } = to;
        let top = Arc::new(Directory::top(self.work.clone(), dir, dir_path));
        self.work.clone().begin_source(node, path, top, name, unfinished);
    }

    /// Begins to copy what is in a directory into one that is there. `dir_path` is what to call that in
    /// reports.
    pub fn add_contents(&self, from: From, dir: Node, dir_path: Vec<u8>) {
        let top = Directory::top(self.work.clone(), dir, dir_path);
        self.work.clone().begin_contents(from.node, from.path, top);
    }

    /// How far it is.
    pub fn tally(&self) -> Tally {
        self.work.counters.tally()
    }

    /// Begins nothing more. What is under way is finished; large files are left where they are, to be
    /// resumed.
    pub fn stop(&self) {
        self.stopper().stop();
    }

    /// What stops this copy, for another thread to hold.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.work.clone())
    }

    /// What tells how far this copy is, for another thread to hold.
    pub fn watcher(&self) -> Watcher {
        Watcher(self.work.clone())
    }

    /// Ready when all that was added is done.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        self.work.all.ended()
    }

    /// Waits until all that was added is done, and says what became of it.
    pub fn finish(self) -> Tally {
        block_on(self.ended());
        let tally = self.tally();
        drop(self.pool);
        tally
    }
}

/// Watches a [`Copier`].
#[derive(Clone, Debug)]
pub struct Watcher(Arc<Work>);

impl Watcher {
    /// As [`Copier::tally`].
    pub fn tally(&self) -> Tally {
        self.0.counters.tally()
    }
}

/// Stops a [`Copier`].
#[derive(Clone, Debug)]
pub struct Stopper(Arc<Work>);

impl Stopper {
    /// As [`Copier::stop`].
    pub fn stop(&self) {
        self.0.stopped.store(true, Ordering::Relaxed);
    }
}

impl Work {
    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Has the pool run this, as a part of what is waited for.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let member = self.all.member();
        self.spawner.spawn(async move {
            task.await;
            drop(member);
        });
    }

    /// Room for so many bytes in memory.
    async fn room(&self, len: usize) -> Permit {
        self.window.take(len.div_ceil(WINDOW_UNIT_BYTES).max(1)).await
    }

    /// Whether there is something that a later copy can go on with.
    fn is_unfinished(&self) -> bool {
        self.is_stopped() || self.counters.parts_kept.load(Ordering::Relaxed) > 0
    }

    fn failed(&self, failure: Failure) {
        self.counters.failed.fetch_add(1, Ordering::Relaxed);
        self.observer.see(Event::Failed(failure));
    }
}
