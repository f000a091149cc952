//! An origin in memory, a cache of it, write-back over the cache, and sessions of each.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tombolo_back_memory::Memory;
use tombolo_core::fs::{
    Client, Create, Entry, Exclusive, Export, File, FileSystem, Mode, Name, NewMode, NodeId, OpenFlags,
    PermissionCheck, RenameFlags, Volume, Write,
};
use tombolo_core::{Ctx, Identity, Result, SessionId};
use tombolo_layer_basic::stats::{self, Counters};
use tombolo_layer_cache::store::{OpenError, OriginIdentity, Store, StoreOptions};
use tombolo_layer_cache::{CacheExport, Contract};
use tombolo_layer_write_back::{Options, WriteBackExport};
use tombolo_mem::{Region, Sink, Source};

/// The origin.
pub struct Origin {
    pub direct: Session,
    /// Counts of the proxy's requests.
    pub counters: Arc<Counters>,
    /// The export that the proxy uses.
    pub export: Arc<dyn Export>,
    dir: TempDir,
}

/// A proxy of the origin.
pub struct Proxy {
    pub session: Session,
    pub write_back: WriteBackExport,
    pub cache: CacheExport,
}

/// A session of the superuser.
#[derive(Clone)]
pub struct Session {
    pub fs: Arc<dyn FileSystem>,
    pub cx: Ctx,
}

pub fn attach(export: &dyn Export) -> Session {
    let session = SessionId(1);
    let client = Client { session, label: "test".into(), checks: PermissionCheck::BackEnd };
    Session { fs: export.attach(&client).expect("attach"), cx: Ctx::root(session) }
}

pub fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).expect("a name")
}

impl Origin {
    pub fn new() -> Self {
        Self::with(|memory| memory)
    }

    /// Creates an origin that the proxy uses through a layer.
    pub fn with(layer: impl FnOnce(Arc<dyn Export>) -> Arc<dyn Export>) -> Self {
        let memory: Arc<dyn Export> = Arc::new(Memory::default());
        let direct = attach(&*memory);
        let counters = Counters::new();
        let export = Arc::new(stats::over(layer(memory), counters.clone()));
        Self { direct, counters, export, dir: tempfile::tempdir().expect("a directory") }
    }

    /// Starts a proxy that sends changes only on request.
    pub fn proxy(&self) -> Proxy {
        let never = Duration::from_secs(3600);
        self.proxy_with(Options { idle: never, delay_max: never, ..Options::default() })
    }

    pub fn proxy_with(&self, options: Options) -> Proxy {
        let identity = OriginIdentity { location: "memory:".into(), volume: Volume::default() };
        let store = await_store(&self.dir.path().join("cache"), &identity);
        let contract = tombolo_layer_cache::Options {
            contract: Contract::Exclusive,
            ..tombolo_layer_cache::Options::default()
        };
        let cache = tombolo_layer_cache::over(&*self.export, store, contract).expect("a cache");
        let dir = self.dir.path().join("write-back");
        let write_back = tombolo_layer_write_back::over(&cache, &dir, options).expect("write-back");
        write_back.learn_root(&Identity::ROOT);
        Proxy { session: attach(&write_back), write_back, cache }
    }

    /// Kills a proxy: the next one starts with the files as they are now.
    pub fn kill(&mut self, proxy: Proxy) {
        let dir = tempfile::tempdir().expect("a directory");
        image(self.dir.path(), dir.path());
        drop(proxy);
        self.go_on_from(dir);
    }

    /// Sets the files of the next proxy.
    pub fn go_on_from(&mut self, left: TempDir) {
        self.dir = left;
    }

    /// Returns the path of a file of the proxy.
    pub fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    /// Counts the files with unsent data.
    pub fn data_files(&self) -> usize {
        std::fs::read_dir(self.dir.path().join("write-back/data")).expect("list").count()
    }

    /// Counts all requests of the proxy, except those that release something and statfs.
    pub fn asked_in_all(&self) -> u64 {
        let all = self.counters.snapshot().operations;
        let all = all.iter().filter(|each| !["release", "forget", "statfs"].contains(&&*each.name));
        all.map(|each| each.count).sum()
    }

    /// Counts the proxy's requests for an operation.
    pub fn asked(&self, operation: &str) -> u64 {
        let all = self.counters.snapshot().operations;
        all.iter().filter(|each| each.name == operation).map(|each| each.count).sum()
    }
}

/// Copies files as they are. Databases precede their logs: entries moved meanwhile are in both.
pub fn image(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("mkdir");
    let mut files: Vec<_> = std::fs::read_dir(from).expect("list").flatten().collect();
    files.sort_by_key(std::fs::DirEntry::file_name);
    for file in files {
        match file.file_type().expect("a type").is_dir() {
            true => image(&file.path(), &to.join(file.file_name())),
            false => drop(std::fs::copy(file.path(), to.join(file.file_name()))),
        }
    }
}

/// Opens a store whose last owner may still be about to end.
fn await_store(dir: &Path, identity: &OriginIdentity) -> Arc<Store> {
    for _ in 0..6000 {
        match Store::open(dir, identity, StoreOptions::default()) {
            Err(OpenError::InUse { .. }) => std::thread::sleep(Duration::from_millis(10)),
            opened => return opened.expect("a store"),
        }
    }
    panic!("{} is in use for ever", dir.display());
}

impl Session {
    /// Resolves a path; "" is the root.
    pub fn find(&self, path: &str) -> Result<Entry> {
        let attr = self.fs.getattr(&self.cx, NodeId::ROOT, None).wait()?;
        let mut at = Entry { node: NodeId::ROOT, attr };
        for part in path.split('/').filter(|part| !part.is_empty()) {
            at = self.fs.lookup(&self.cx, at.node, name(part)).wait()?;
        }
        Ok(at)
    }

    /// Returns the directory of a path and the last name.
    pub fn place<'a>(&self, path: &'a str) -> Result<(NodeId, Name<'a>)> {
        let (dir, last) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.find(dir)?.node, name(last)))
    }

    pub fn create(&self, path: &str, mode: u32) -> Result<File> {
        let (dir, last) = self.place(path)?;
        let flags = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::TRUNCATE;
        let how = Create { mode: NewMode::settled(Mode::new(mode)), flags, exclusive: Exclusive::No };
        let created = self.fs.create(&self.cx, dir, last, &how).wait()?;
        Ok(File { node: created.entry.node, open: created.open })
    }

    pub fn open(&self, path: &str) -> Result<File> {
        let node = self.find(path)?.node;
        let opened = self.fs.open(&self.cx, node, OpenFlags::READ | OpenFlags::WRITE).wait()?;
        Ok(File { node, open: opened.open })
    }

    pub fn close(&self, file: File) {
        self.fs.release(&self.cx, file);
    }

    pub fn write(&self, file: File, offset: u64, bytes: &[u8]) -> Result<()> {
        let how = Write { offset, ..Write::default() };
        let written = self.fs.write(&self.cx, file, &how, Source::from(bytes.to_vec())).wait()?;
        assert_eq!(written.count, bytes.len());
        Ok(())
    }

    /// Creates or truncates a file and writes it.
    pub fn put(&self, path: &str, bytes: &[u8]) -> Result<()> {
        let file = self.create(path, 0o644)?;
        let written = if bytes.is_empty() { Ok(()) } else { self.write(file, 0, bytes) };
        self.close(file);
        written
    }

    pub fn read(&self, file: File) -> Result<Vec<u8>> {
        let size = self.fs.getattr(&self.cx, file.node, Some(file)).wait()?.size;
        let region = Region::heap(size as usize);
        let mut at = 0;
        while at < size {
            let mut sink = Sink::from(&region);
            sink.advance(at as usize);
            let done = self.fs.read(&self.cx, file, at, sink).wait()?;
            assert!(done.count > 0, "the file ends early");
            at += done.count as u64;
        }
        let mut bytes = vec![0; size as usize];
        region.read_at(0, &mut bytes).expect("within");
        Ok(bytes)
    }

    /// Returns the content of a file.
    pub fn get(&self, path: &str) -> Result<Vec<u8>> {
        let file = self.open(path)?;
        let bytes = self.read(file);
        self.close(file);
        bytes
    }

    pub fn mkdir(&self, path: &str) -> Result<()> {
        let (dir, last) = self.place(path)?;
        let mode = NewMode::settled(Mode::new(0o755));
        self.fs.mkdir(&self.cx, dir, last, mode).wait().map(drop)
    }

    pub fn rename(&self, from: &str, to: &str, flags: RenameFlags) -> Result<()> {
        let (from, to) = (self.place(from)?, self.place(to)?);
        self.fs.rename(&self.cx, from.0, from.1, to.0, to.1, flags).wait().map(drop)
    }

    pub fn link(&self, from: &str, to: &str) -> Result<()> {
        let (node, to) = (self.find(from)?.node, self.place(to)?);
        self.fs.link(&self.cx, node, to.0, to.1).wait().map(drop)
    }

    pub fn unlink(&self, path: &str) -> Result<()> {
        let (dir, last) = self.place(path)?;
        self.fs.unlink(&self.cx, dir, last).wait().map(drop)
    }

    pub fn rmdir(&self, path: &str) -> Result<()> {
        let (dir, last) = self.place(path)?;
        self.fs.rmdir(&self.cx, dir, last).wait().map(drop)
    }
}
