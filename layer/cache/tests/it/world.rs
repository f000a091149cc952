//! An origin in memory, a cache of it, and a session that changes the origin behind the cache.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tombolo_back_memory::Memory;
use tombolo_core::fs::{
    Attr, Client, Cookie, Create, DirBudget, DirPage, Entry, Export, File, FileSystem, Mode, Name, NewMode,
    NodeId, OpenFlags, Opened, PermissionCheck, Volume, Write,
};
use tombolo_core::{Answer, Ctx, Identity, Result, SessionId, forward};
use tombolo_layer_basic::stats::Counters;
use tombolo_layer_basic::{delay, stats};
use tombolo_layer_cache::store::{OpenError, OriginIdentity, Store, StoreOptions};
use tombolo_layer_cache::{CacheExport, Contract, Options, Policy};
use tombolo_mem::{Region, Sink, Source};

/// The origin, with a session that bypasses the cache.
pub struct Origin {
    pub export: Arc<dyn Export>,
    pub direct: Session,
    counters: Arc<Counters>,
}

/// A session with a user.
#[derive(Clone)]
pub struct Session {
    pub fs: Arc<dyn FileSystem>,
    pub cx: Ctx,
}

/// A cache with a session.
pub struct Cached {
    pub cache: CacheExport,
    pub session: Session,
}

pub fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).expect("a name")
}

pub fn attach(export: &dyn Export) -> Session {
    let session = SessionId(1);
    let client = Client { session, label: "test".into(), checks: PermissionCheck::BackEnd };
    Session { fs: export.attach(&client).expect("attach"), cx: Ctx::root(session) }
}

impl Origin {
    pub fn new() -> Self {
        Self::after(None)
    }

    /// Creates an origin that delays every answer.
    pub fn far(delay: Duration) -> Self {
        Self::after(Some(delay))
    }

    fn after(delay: Option<Duration>) -> Self {
        let memory: Arc<dyn Export> = Arc::new(Memory::default());
        let direct = attach(&*memory);
        let far = match delay {
            Some(time) => Arc::new(delay::over(memory, time).expect("a timer")),
            None => memory,
        };
        Self { direct, ..Self::of(far) }
    }

    /// Wraps an existing export.
    pub fn of(export: Arc<dyn Export>) -> Self {
        let (direct, counters) = (attach(&*export), Counters::new());
        Self { export: Arc::new(stats::over(export, counters.clone())), direct, counters }
    }

    /// Changes the attributes seen through the export by `clock`, except in listings and by `direct`.
    pub fn with_clock(self, clock: fn(Attr) -> Attr) -> Self {
        Self { export: Arc::new(Clocked(self.export, clock)), ..self }
    }

    /// Returns the cache's number of requests of one operation.
    pub fn asked(&self, operation: &str) -> u64 {
        let all = self.counters.snapshot().operations;
        all.iter().filter(|each| each.name == operation).map(|each| each.count).sum()
    }

    /// Returns the cache's number of requests.
    pub fn asked_in_all(&self) -> u64 {
        let all = self.counters.snapshot().operations;
        // Openings and look-ups may be released at any time.
        let all = all.iter().filter(|each| !["release", "forget"].contains(&&*each.name));
        all.map(|each| each.count).sum()
    }

    pub fn cached(&self, dir: &Path, contract: Contract) -> Cached {
        self.cached_with(dir, Options { contract, ..Options::default() }, StoreOptions::default())
    }

    pub fn cached_with(&self, dir: &Path, options: Options, store: StoreOptions) -> Cached {
        self.cached_by(dir, options, store)
    }

    pub fn cached_by(&self, dir: &Path, policy: impl Into<Policy>, store: StoreOptions) -> Cached {
        let store = opened_store(dir, store);
        let cache = tombolo_layer_cache::over(&*self.export, store, policy).expect("a cache");
        let session = attach(&cache);
        Cached { cache, session }
    }
}

/// Opens the store of a cache of this origin.
pub fn opened_store(dir: &Path, options: StoreOptions) -> Arc<Store> {
    let identity = OriginIdentity { location: "memory:".into(), volume: Volume::default() };
    await_store(dir, || Store::open(dir, &identity, options))
}

/// Opens a store, waiting for the end of its last owner.
pub fn await_store(dir: &Path, open: impl Fn() -> std::result::Result<Arc<Store>, OpenError>) -> Arc<Store> {
    for _ in 0..6000 {
        match open() {
            Err(OpenError::InUse { .. }) => std::thread::sleep(Duration::from_millis(10)),
            opened => return opened.expect("a store"),
        }
    }
    panic!("{} is in use for ever", dir.display());
}

impl Session {
    pub fn of_user(&self, uid: u32) -> Self {
        let identity = Identity { uid, gid: uid, groups: None };
        Self { fs: self.fs.clone(), cx: Ctx { identity, ..self.cx.clone() } }
    }

    pub fn lookup(&self, text: &str) -> Result<Entry> {
        self.fs.lookup(&self.cx, NodeId::ROOT, name(text)).wait()
    }

    /// Creates or truncates a file, and writes it.
    pub fn put(&self, text: &str, bytes: &[u8]) {
        self.put_in(NodeId::ROOT, text, bytes);
    }

    /// Creates or truncates a file in a directory, and writes it.
    pub fn put_in(&self, parent: NodeId, text: &str, bytes: &[u8]) {
        let mode = NewMode::settled(Mode::new(0o644));
        let flags = OpenFlags::WRITE | OpenFlags::TRUNCATE;
        let create = Create { mode, flags, ..Create::default() };
        let created = self.fs.create(&self.cx, parent, name(text), &create).wait().expect("create");
        let file = File { node: created.entry.node, open: created.open };
        if !bytes.is_empty() {
            let source = Source::from(bytes.to_vec());
            let written = self.fs.write(&self.cx, file, &Write::default(), source).wait().expect("write");
            assert_eq!(written.count, bytes.len());
        }
        self.fs.release(&self.cx, file);
    }

    /// Returns the names in the root.
    pub fn list(&self) -> Vec<String> {
        self.list_of(NodeId::ROOT)
    }

    /// Returns the names in a directory.
    pub fn list_of(&self, node: NodeId) -> Vec<String> {
        let flags = OpenFlags::READ | OpenFlags::DIRECTORY;
        let opened = self.fs.open(&self.cx, node, flags).wait().expect("open");
        let file = File { node, open: opened.open };
        let (mut names, mut cookie) = (Vec::new(), Cookie::START);
        loop {
            let budget = DirBudget { size_bytes: 1 << 16, entry_bytes: 24, align: 8, plus: false };
            let page = self.fs.readdir(&self.cx, file, cookie, DirPage::new(budget)).wait().expect("list");
            for entry in page.iter() {
                cookie = entry.cookie;
                names.push(String::from_utf8_lossy(entry.name).into_owned());
            }
            if page.is_end() {
                break;
            }
        }
        self.fs.release(&self.cx, file);
        names.retain(|name| name != "." && name != "..");
        names
    }

    pub fn open(&self, text: &str) -> Result<File> {
        let node = self.lookup(text)?.node;
        let opened = self.fs.open(&self.cx, node, OpenFlags::READ).wait()?;
        Ok(File { node, open: opened.open })
    }

    pub fn read(&self, file: File, offset: u64, len: usize) -> Result<Vec<u8>> {
        let region = Region::heap(len);
        let done = self.fs.read(&self.cx, file, offset, Sink::from(&region)).wait()?;
        let mut bytes = vec![0; done.count];
        region.read_at(0, &mut bytes).expect("within");
        Ok(bytes)
    }

    /// Reads a whole file through an opening of its own.
    pub fn get(&self, text: &str) -> Result<Vec<u8>> {
        let file = self.open(text)?;
        let mut bytes = Vec::new();
        loop {
            match self.read(file, bytes.len() as u64, 1 << 17) {
                Ok(more) if more.is_empty() => break,
                Ok(more) => bytes.extend(more),
                Err(error) => {
                    self.fs.release(&self.cx, file);
                    return Err(error);
                }
            }
        }
        self.fs.release(&self.cx, file);
        Ok(bytes)
    }
}

/// Returns bytes that depend on their offsets: `(at / 7 + at / 4096) as u8 ^ seed`.
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    const BLOCK: usize = 4096;
    const CYCLE: usize = 7 * 256;
    static CYCLES: [OnceLock<Vec<u8>>; 256] = [const { OnceLock::new() }; 256];
    let cycle = CYCLES[usize::from(seed)]
        .get_or_init(|| (0..CYCLE + BLOCK).map(|at| (at / 7) as u8 ^ seed).collect());
    let mut bytes = Vec::with_capacity(len);
    for from in (0..len).step_by(BLOCK) {
        let place = (from + 7 * (from / BLOCK)) % CYCLE;
        bytes.extend_from_slice(&cycle[place..place + BLOCK.min(len - from)]);
    }
    bytes
}

/// Waits until present data are old enough to be reused in another life.
pub fn grow_old() {
    std::thread::sleep(Duration::from_millis(2100));
}

/// An origin with another clock in look-ups, opens and getattr.
struct Clocked<T: ?Sized>(Arc<T>, fn(Attr) -> Attr);

impl Export for Clocked<dyn Export> {
    fn attach(&self, client: &Client) -> Result<Arc<dyn FileSystem>> {
        Ok(Arc::new(Clocked(self.0.attach(client)?, self.1)))
    }
}

impl FileSystem for Clocked<dyn FileSystem> {
    fn lookup(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Entry> {
        let clock = self.1;
        self.0.lookup(cx, parent, name).map(move |entry| Entry { attr: clock(entry.attr), ..entry })
    }

    fn getattr(&self, cx: &Ctx, node: NodeId, file: Option<File>) -> Answer<Attr> {
        self.0.getattr(cx, node, file).map(self.1)
    }

    fn open(&self, cx: &Ctx, node: NodeId, flags: OpenFlags) -> Answer<Opened> {
        let clock = self.1;
        self.0.open(cx, node, flags).map(move |opened| Opened { attr: opened.attr.map(clock), ..opened })
    }

    forward!(to self.0; setattr access readlink create create_unnamed mkdir symlink mknod link unlink rmdir
        rename flush fsync read write readdir statfs syncfs forget release
        profile persistent_handles);
}
