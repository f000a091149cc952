//! One run, determined by its seed.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tombolo_back_memory::Memory;
use tombolo_core::fs::{Create, Export, OpenFlags, PersistentHandle, RenameFlags};
use tombolo_host_runtime::task;
use tombolo_host_runtime::thread_pool::ThreadPoolLimits;
use tombolo_layer_cache::store::StoreOptions;
use tombolo_layer_cache::{CacheExport, Contract, Counts, Options, Prefetch, over};
use tombolo_test_support::{Session, plain};

use super::caller::{Action, Caller, DIRS, Held, NAMES, Node, Place, Promise, World};
use super::history::{Author, History};
use super::network::{Clock, Link, far};
use crate::common::opened_store;

const STEPS: usize = 250;
const FILE_BYTES_MAX: usize = 20_000;
const FOR_EVER: Duration = Duration::from_secs(1 << 20);

/// Maximum amounts of cached data.
const CAPACITIES_BYTES: [u64; 3] = [10_000, 60_000, 1 << 30];

/// Parameters drawn from a seed.
#[derive(Clone, Copy, Debug)]
struct Plan {
    contracts: [Contract; 2],
    never_old: bool,
    /// Changes by clients of each cache, and by the origin itself.
    change: ([bool; 2], bool),
    clock: Clock,
    cuts: bool,
    capacity_bytes: u64,
    prefetch: Prefetch,
}

pub struct Run {
    seed: u64,
    random: fastrand::Rng,
    plan: Plan,
    world: Arc<World>,
    direct: Session,
    links: [Arc<Link>; 2],
    caches: [Option<Running>; 2],
    scratch: tempfile::TempDir,
    handles: Arc<std::sync::Mutex<Vec<(usize, Node, PersistentHandle)>>>,
    counts: Counts,
}

/// A running cache.
struct Running {
    cache: CacheExport,
    caller: Caller,
    /// Long-lived openings.
    held: Arc<std::sync::Mutex<Vec<Held>>>,
}

impl Plan {
    fn new(random: &mut fastrand::Rng) -> Self {
        let (all, none) = (([true; 2], true), ([false; 2], false));
        let never_old = random.bool();
        let refresh = Contract::Refresh(if never_old { FOR_EVER } else { Duration::ZERO });
        let (contracts, change) = match random.u8(..10) {
            0 => ([Contract::Immutable; 2], none),
            1..4 => ([Contract::Exclusive, Contract::CloseToOpen], ([true, false], false)),
            4..6 => ([refresh, Contract::CloseToOpen], all),
            _ => ([Contract::CloseToOpen; 2], all),
        };
        let clocks = [Clock::Same, Clock::Coarse, Clock::Behind, Clock::Behind];
        let clock = clocks[random.usize(..clocks.len())];
        let capacity_bytes = CAPACITIES_BYTES[random.usize(..3)];
        let cuts = random.bool();
        let prefetch = if random.bool() { Prefetch::Walk } else { Prefetch::Off };
        Self { contracts, never_old, change, clock, cuts, capacity_bytes, prefetch }
    }

    /// Returns the memory for files: small if the data capacity is small.
    fn memory_bytes(&self) -> usize {
        if self.capacity_bytes == CAPACITIES_BYTES[0] { 8192 } else { StoreOptions::default().memory_bytes }
    }

    fn promise(&self, cache: usize) -> Promise {
        let is_new = !self.never_old;
        let (looks_are_new, opens_are_new) = match self.contracts[cache] {
            Contract::Immutable | Contract::Exclusive => (true, true),
            Contract::CloseToOpen | Contract::Lease => (is_new, true),
            Contract::Refresh(_) => (is_new, is_new),
        };
        Promise { looks_are_new, opens_are_new }
    }
}

impl Run {
    pub fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let plan = Plan::new(&mut random);
        let origin: Arc<dyn Export> = Arc::new(Memory::default());
        let direct = Session::attach(&*origin);
        let world = World::new(History::new(Session::attach(&*origin), plan.clock));
        let links = [0, 1].map(|cache| {
            let world = world.clone();
            let performed = move |request| {
                world.history.lock().expect("no panic").observe(Author { cache, request });
            };
            Link::new(origin.clone(), plan.clock, Box::new(performed))
        });
        // In memory if possible: runs open many databases.
        let memory = std::path::Path::new("/dev/shm");
        let scratch = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        let (caches, scratch) = ([None, None], scratch.expect("a scratch directory"));
        let (handles, counts) = (Arc::default(), Counts::default());
        let mut run = Self { seed, random, plan, world, direct, links, caches, scratch, handles, counts };
        run.plant();
        (0..2).for_each(|cache| run.start(cache));
        run
    }

    /// Creates the initial tree.
    fn plant(&mut self) {
        DIRS[1..].iter().for_each(|dir| self.change_directly(Action::Mkdir(Place { dir: "", name: dir })));
        for _ in 0..6 {
            let (place, len) = (self.place(), self.random.usize(..FILE_BYTES_MAX));
            self.change_directly(Action::Write(place, OpenFlags::WRITE | OpenFlags::TRUNCATE, 0, len));
        }
    }

    fn start(&mut self, cache: usize) {
        let options = StoreOptions {
            capacity_bytes: self.plan.capacity_bytes,
            block_bytes: 4096,
            memory_bytes: self.plan.memory_bytes(),
            commit_pause: FOR_EVER,
            // A file that is found evicts what is unused if the index is nearly full, as it often is with the
            // two small capacities.
            index_pause: Duration::ZERO,
        };
        let store = opened_store(&self.dir(cache), options);
        let refresh = if self.plan.never_old { FOR_EVER } else { Duration::ZERO };
        let options = Options {
            contract: self.plan.contracts[cache],
            attr_refresh: refresh,
            rights_refresh: FOR_EVER,
            prefetch: self.plan.prefetch,
            // Without threads, so that the order depends on the seed alone.
            pool: ThreadPoolLimits { threads: 0, ..ThreadPoolLimits::default() },
            ..Options::default()
        };
        self.links[cache].set_open(true);
        let export = over(&*far(self.links[cache].clone()), store, options).expect("a cache");
        let fs = Session::attach(&export).fs;
        self.links[cache].set_open(false);
        let caller = Caller { world: self.world.clone(), cache, promise: self.plan.promise(cache), fs };
        self.caches[cache] = Some(Running { cache: export, caller, held: Arc::default() });
    }

    fn dir(&self, cache: usize) -> PathBuf {
        self.scratch.path().join(cache.to_string())
    }

    /// Runs to the end; returns the violations, if any.
    pub fn run(mut self) -> Result<Counts, String> {
        for _ in 0..STEPS {
            self.step();
            if self.has_failed() {
                break;
            }
        }
        // A cache whose clients wait for ever may have been stopped and not restarted.
        if !self.has_failed() {
            self.settle();
            self.look_at_all();
            (0..2).for_each(|cache| self.stop(cache));
        }
        let wrong = self.world.wrong.lock().expect("no panic");
        if wrong.is_empty() {
            return Ok(self.counts);
        }
        let log = self.world.log.lock().expect("no panic");
        let log = log[log.len().saturating_sub(150)..].join("\n");
        Err(format!("{log}\nseed {}: {:?}\n{}", self.seed, self.plan, wrong.join("\n")))
    }

    fn step(&mut self) {
        let waiting: Vec<usize> = self.links.iter().map(|link| link.waiting()).collect();
        match self.random.u8(..100) {
            _ if waiting.iter().sum::<usize>() > 12 => self.deliver(),
            0..55 => self.deliver(),
            55..80 => self.begin(),
            80..88 if self.plan.change.1 => {
                let action = self.action(true);
                self.world.note(format_args!("at the origin: {action:?}"));
                self.change_directly(action);
            }
            88..92 => self.use_held(),
            92..94 => self.use_handle(),
            94..96 if self.plan.cuts => self.cut(),
            96 => {
                let cache = self.random.usize(..2);
                self.world.note(format_args!("cache {cache} restarts"));
                self.stop(cache);
                // Clients that wait for ever hold its store for ever.
                if !self.has_failed() {
                    self.start(cache);
                }
            }
            97 => self.running(self.seed as usize % 2).cache.flush(),
            98 | 99 => {
                let cache = self.random.usize(..2);
                self.world.note(format_args!("clients of cache {cache} forget what is unused"));
                self.running(cache).caller.forget();
            }
            _ => self.begin(),
        }
    }

    fn has_failed(&self) -> bool {
        !self.world.wrong.lock().expect("no panic").is_empty()
    }

    fn running(&self, cache: usize) -> &Running {
        self.caches[cache].as_ref().expect("it runs")
    }

    fn deliver(&mut self) {
        let waiting = self.links.each_ref().map(|link| link.waiting());
        let all = waiting[0] + waiting[1];
        if all > 0 {
            let index = self.random.usize(..all);
            let (cache, index) = if index < waiting[0] { (0, index) } else { (1, index - waiting[0]) };
            self.links[cache].deliver(index, true);
        }
    }

    /// Cuts the network: messages in both directions are lost.
    fn cut(&mut self) {
        let link = &self.links[self.random.usize(..2)];
        self.world.note("cut");
        (0..link.waiting()).for_each(|_| link.deliver(0, false));
    }

    fn begin(&mut self) {
        let cache = self.random.usize(..2);
        let changes = self.plan.change.0[cache] && self.random.bool();
        let action = self.action(changes);
        let caller = self.running(cache).caller.clone();
        spawn(caller.clone(), async move { caller.perform(action).await });
    }

    /// Opens a file for a longer time, or reads an open one.
    fn use_held(&mut self) {
        let (cache, place) = (self.random.usize(..2), self.place());
        let running = self.running(cache);
        let (caller, held) = (running.caller.clone(), running.held.clone());
        let known = held.lock().expect("no panic").clone();
        let which = self.random.usize(..6);
        let (offset, len) = (self.random.usize(..FILE_BYTES_MAX), self.random.usize(1..FILE_BYTES_MAX));
        spawn(caller.clone(), async move {
            match known.get(which) {
                Some(held) => drop(caller.read(*held, offset, len).await),
                None => {
                    let Ok(node) = caller.find(place).await else { return };
                    if let Ok(opened) = caller.open(node, OpenFlags::READ).await {
                        held.lock().expect("no panic").push(opened);
                    }
                }
            }
        });
    }

    /// Records the handle of a file, or resolves a recorded one.
    fn use_handle(&mut self) {
        let (cache, place) = (self.random.usize(..2), self.place());
        let (caller, handles) = (self.running(cache).caller.clone(), self.handles.clone());
        let known = {
            let handles = handles.lock().expect("no panic");
            let of_cache: Vec<_> = handles.iter().filter(|(of, ..)| *of == cache).cloned().collect();
            of_cache
        };
        let which = self.random.usize(..4);
        spawn(caller.clone(), async move {
            match known.get(which) {
                Some((_, node, handle)) => drop(caller.resolve(*node, handle.clone()).await),
                None => {
                    if let Ok((node, handle)) = caller.handle(place).await {
                        handles.lock().expect("no panic").push((cache, node, handle));
                    }
                }
            }
        });
    }

    /// Delivers all pending messages. No caller may be left waiting.
    fn settle(&mut self) {
        for _ in 0..100_000 {
            if self.links.iter().all(|link| link.waiting() == 0) {
                break;
            }
            self.deliver();
        }
        for cache in 0..2 {
            let pending = self.world.pending[cache].load(Ordering::Relaxed);
            if pending > 0 {
                self.world.fail(format!("cache {cache}: {pending} clients wait for ever"));
            }
        }
    }

    /// Verifies at the end that each cache shows the whole tree.
    fn look_at_all(&mut self) {
        let paths = self.world.history.lock().expect("no panic").paths();
        let known = |text: &[u8]| {
            let all = DIRS.iter().chain(&NAMES);
            all.copied().find(|known| known.as_bytes() == text)
        };
        for cache in 0..2 {
            for (dir, name, _) in &paths {
                let (Some(dir), Some(name)) = (known(dir), known(name)) else { continue };
                if DIRS.contains(&name) {
                    continue;
                }
                let (caller, place) = (self.running(cache).caller.clone(), Place { dir, name });
                spawn(caller.clone(), async move { caller.perform(Action::Read(place, 0, 4096)).await });
                self.settle();
            }
            for dir in DIRS {
                let caller = self.running(cache).caller.clone();
                spawn(caller.clone(), async move { caller.perform(Action::List(dir, true)).await });
                self.settle();
            }
        }
    }

    /// Ends a cache; its waiting clients get an error.
    fn stop(&mut self, cache: usize) {
        while self.links[cache].waiting() > 0 {
            self.links[cache].deliver(0, false);
        }
        let pending = self.world.pending[cache].load(Ordering::Relaxed);
        if pending > 0 {
            self.world.fail(format!("cache {cache}: {pending} clients wait for ever"));
        }
        if let Some(running) = self.caches[cache].take() {
            let counts = running.cache.counts();
            (self.counts.hits, self.counts.misses) =
                (self.counts.hits + counts.hits, self.counts.misses + counts.misses);
        }
    }

    fn place(&mut self) -> Place {
        let dir = DIRS[self.random.usize(..DIRS.len())];
        Place { dir, name: NAMES[self.random.usize(..NAMES.len())] }
    }

    fn action(&mut self, changes: bool) -> Action {
        let (a, b) = (self.place(), self.place());
        let (offset, len) = (self.random.usize(..FILE_BYTES_MAX), self.random.usize(1..FILE_BYTES_MAX / 2));
        let random = &mut self.random;
        if !changes {
            return match random.u8(..10) {
                0..3 => Action::Stat(a),
                3..8 => Action::Read(a, offset, len),
                _ => Action::List(a.dir, random.bool()),
            };
        }
        let flags = [OpenFlags::TRUNCATE, OpenFlags::READ, OpenFlags::APPEND, OpenFlags::empty()];
        let flags = OpenFlags::WRITE | flags[random.usize(..4)];
        let how =
            [RenameFlags::empty(), RenameFlags::empty(), RenameFlags::NO_REPLACE, RenameFlags::EXCHANGE];
        match random.u8(..20) {
            0..7 => Action::Write(a, flags, offset, len),
            7 => Action::Truncate(a, offset as u64),
            8 => Action::Chmod(a, [0o644, 0o600, 0o755][random.usize(..3)]),
            9 => Action::Symlink(a),
            10 | 11 => Action::Link(a, b),
            12..15 => Action::Unlink(a),
            15 => Action::Mkdir(Place { dir: "", name: DIRS[random.usize(1..DIRS.len())] }),
            16 => Action::Rmdir(Place { dir: "", name: DIRS[random.usize(1..DIRS.len())] }),
            _ => Action::Rename(a, b, how[random.usize(..how.len())]),
        }
    }

    /// Changes something at the origin itself; the change may fail.
    fn change_directly(&mut self, action: Action) {
        let at = &self.direct;
        let path = |place: Place| format!("{}/{}", place.dir, place.name);
        let _ = match action {
            Action::Write(place, flags, offset, len) => {
                let file = at.file_as(&path(place), &Create { flags, ..plain() });
                file.and_then(|file| {
                    let written = at.write(file, offset as u64, &self.world.bytes(len)).map(drop);
                    at.release(file);
                    written
                })
            }
            Action::Truncate(place, size) => at.truncate(&path(place), size).map(drop),
            Action::Chmod(place, mode) => at.chmod(&path(place), mode).map(drop),
            Action::Mkdir(place) => at.mkdir(&path(place)).map(drop),
            Action::Symlink(place) => at.symlink(&path(place), &self.world.bytes(8)).map(drop),
            Action::Link(from, to) => at.link(&path(from), &path(to)).map(drop),
            Action::Unlink(place) => at.unlink(&path(place)).map(drop),
            Action::Rmdir(place) => at.rmdir(&path(place)).map(drop),
            Action::Rename(from, to, flags) => at.rename(&path(from), &path(to), flags).map(drop),
            Action::Stat(_) | Action::Read(..) | Action::List(..) => Ok(()),
        };
        self.world.history.lock().expect("no panic").observe(Author { cache: usize::MAX, request: 0 });
    }
}

/// Starts an operation of a client.
fn spawn(caller: Caller, work: impl Future<Output = ()> + Send + 'static) {
    let (world, cache) = (caller.world.clone(), caller.cache);
    drop(caller);
    world.pending[cache].fetch_add(1, Ordering::Relaxed);
    task::spawn(async move {
        work.await;
        world.pending[cache].fetch_sub(1, Ordering::Relaxed);
    });
}
