//! Copies of files and trees, from any tree to any tree.
//!
//! A [`Copier`] walks the sources depth first and keeps a bounded number of files in progress on a few
//! threads: a small file costs round trips, so those of many files overlap. A small file is read in one piece
//! and created under its own name. A large one is read and written in pieces, many at a time, straight from
//! the buffer that it was read into; it is written under the name `.NAME.tombolo-part`, as a *part*, and
//! renamed when complete. A file that replaces another is written as a part too, whatever its size.
//!
//! **Resuming.** A part records how much of it is valid, and for which version of its source, in its access
//! time, which is not needed before the file is complete: see [`mark`]. The mark is written every few seconds
//! and when a copy is stopped, after the data that it counts were made stable; so a copy can be resumed after
//! the end of this process, of the server, or of either machine. A part whose mark does not match starts
//! over. A directory created as the copy of a source under another name contains a file with a name derived
//! from the source's ([`unfinished_name`]) until it is complete: a later copy continues it instead of copying
//! the source into it.
//!
//! Non-goals: choosing the copy's name when the target is a directory (the caller decides), deleting what the
//! source does not have, comparing contents.
//!
//! Reading order: this file, `walk`, `entry`, `small`, `large`; `mark`, `attributes`, `links` are independent
//! rules.

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

/// Options of a copy.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Maximum number of files in progress.
    pub jobs: usize,
    /// Number of threads that read, write and send.
    pub threads: usize,
    /// Maximum amount of file data in flight, in bytes.
    pub window_bytes: usize,
    /// Copy directories with their contents, and pipes, sockets and devices; without this, they are left out.
    /// A symbolic link that is passed as a source is copied as a link in either case.
    pub recursive: bool,
    /// Preserve modes, owners (as far as the user may), times and hard links.
    pub preserve: bool,
    /// Treatment of existing files.
    pub existing: Existing,
    /// Resume parts that an earlier copy left, and skip files that exist with the same size and time.
    pub resume: bool,
    /// Treatment of zeroes.
    pub holes: Holes,
    /// Stability that a small file's data must have when a write is answered. A stable write saves the round
    /// trip of a commit, but waits for the server's disk; `Unstable` is as safe as cp(1).
    pub small_files: Stability,
    /// Report everything that is copied ([`Event::Copied`]).
    pub tell_each: bool,
}

/// Treatment of existing files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Existing {
    /// Replace existing files, each atomically and only when its replacement is complete; but a name that
    /// becomes a further hard link is removed first.
    #[default]
    Replace,
    /// Leave existing files unchanged.
    Keep,
}

/// Treatment of zeroes in the source. Files of at most [`PIECE_BYTES`] are written in full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Holes {
    /// Holes stay holes where the source's file system reports them.
    #[default]
    AsTheyAre,
    /// Blocks of zeroes become holes as well.
    Make,
    /// Everything is written, holes as zeroes.
    Fill,
}

impl Default for Options {
    /// Returns options for 64 files on two threads and 64 MiB, without directories and special files.
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

/// Maximum size of one read or write, and of a small file, in bytes.
pub const PIECE_BYTES: usize = 1 << 20;

/// Maximum number of directory walks in progress, besides one for each source.
const WALKERS: usize = 16;

/// Unit in which memory of the window is reserved, in bytes.
const WINDOW_UNIT_BYTES: usize = 64 << 10;

/// A copy in progress. Dropping it aborts the copy.
#[derive(Debug)]
pub struct Copier {
    work: Arc<Work>,
    pool: ThreadPool,
}

struct Work {
    options: Options,
    observer: Arc<dyn Observer>,
    spawner: Spawner,
    /// All tasks of the copy, for [`Copier::ended`].
    all: Group,
    /// One permit for each file in progress.
    files: Permits,
    walkers: Permits,
    /// Memory for data in flight, in units of [`WINDOW_UNIT_BYTES`].
    window: Permits,
    buffers: BufferPool,
    counters: Counters,
    links: Links,
    claims: Claims,
    entered: Entered,
    stopped: AtomicBool,
    /// `true` after the target has refused to set an owner or a group.
    owners_refused: AtomicBool,
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work").field("options", &self.options).field("tally", &self.counters.read()).finish()
    }
}

/// Source of a copy.
#[derive(Debug)]
pub struct From {
    /// The file, directory or link.
    pub node: Node,
    /// Path of the source in reports.
    pub path: Vec<u8>,
}

/// Target of a copy.
#[derive(Debug)]
pub struct To {
    /// Directory that gets the copy.
    pub dir: Node,
    /// Name of the copy in the directory.
    pub name: NameBuf,
    /// The directory's path in reports.
    pub dir_path: Vec<u8>,
    /// Name of the empty file that marks a newly created target directory while something that can be resumed
    /// is missing, see [`unfinished_name`].
    pub unfinished: Option<NameBuf>,
}

impl Copier {
    /// Starts the threads, without copying anything yet.
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

    /// Begins to copy another source.
    pub fn add(&self, from: From, to: To) {
        let From { node, path } = from;
        let To { dir, name, dir_path, unfinished } = to;
        let top = Arc::new(Directory::top(self.work.clone(), dir, dir_path));
        self.work.clone().begin_source(node, path, top, name, unfinished);
    }

    /// Begins to copy the contents of a directory into an existing one. `dir_path` is its path in reports.
    pub fn add_contents(&self, from: From, dir: Node, dir_path: Vec<u8>) {
        let top = Directory::top(self.work.clone(), dir, dir_path);
        self.work.clone().begin_contents(from.node, from.path, top);
    }

    /// Returns the progress so far.
    pub fn tally(&self) -> Tally {
        self.work.counters.read()
    }

    /// Stops the copy: starts nothing more, finishes small files, and leaves the parts of large ones that are
    /// worth resuming.
    pub fn stop(&self) {
        self.stopper().stop();
    }

    /// Returns a handle with which another thread can stop this copy.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.work.clone())
    }

    /// Returns a handle with which another thread can watch this copy's progress.
    pub fn watcher(&self) -> Watcher {
        Watcher(self.work.clone())
    }

    /// Waits until all that was added is done.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        self.work.all.ended()
    }

    /// Waits until all that was added is done, and returns the outcome.
    pub fn finish(self) -> Tally {
        block_on(self.ended());
        let tally = self.tally();
        drop(self.pool);
        tally
    }
}

/// A handle to watch a [`Copier`].
#[derive(Clone, Debug)]
pub struct Watcher(Arc<Work>);

impl Watcher {
    /// Returns the progress as [`Copier::tally`] does.
    pub fn tally(&self) -> Tally {
        self.0.counters.read()
    }
}

/// A handle to stop a [`Copier`].
#[derive(Clone, Debug)]
pub struct Stopper(Arc<Work>);

impl Stopper {
    /// Stops the copy as [`Copier::stop`] does.
    pub fn stop(&self) {
        self.0.stopped.store(true, Ordering::Relaxed);
    }
}

impl Work {
    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Runs a task on the pool; [`Copier::ended`] waits for it.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let member = self.all.member();
        self.spawner.spawn(async move {
            task.await;
            drop(member);
        });
    }

    /// Waits for `len` bytes of the memory window.
    async fn room(&self, len: usize) -> Permit {
        self.window.take(len.div_ceil(WINDOW_UNIT_BYTES).max(1)).await
    }

    /// Returns `true` if something is left for a later copy to resume.
    fn is_unfinished(&self) -> bool {
        self.is_stopped() || self.counters.parts_kept.get() > 0
    }

    fn failed(&self, failure: Failure) {
        self.counters.failed.increment();
        self.observer.see(Event::Failed(failure));
    }
}
