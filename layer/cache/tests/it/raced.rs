//! Replies out of order: the facts of each are cached.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tombolo_core::fs::{
    AccessMask, Attr, Client, Cookie, DirBudget, DirPage, Entry, Export, File, FileSystem, FileType, Mode,
    Name, NewMode, NodeId, OpenFlags, Opened, ReadDone,
};
use tombolo_core::{Answer, Ctx, Error, Result, forward};
use tombolo_host_runtime::thread_pool::{Lane, ThreadPool, ThreadPoolLimits};
use tombolo_layer_cache::Contract;
use tombolo_mem::Sink;

use crate::world::{Origin, Session, name, pattern};

/// An origin that answers concurrent requests out of order, until it fails.
struct Racing<T: ?Sized>(Arc<T>, Arc<Line>);

struct Line {
    lane: Lane,
    _pool: ThreadPool,
    is_dead: AtomicBool,
    asked_in_vain: AtomicU64,
}

impl Line {
    fn new() -> Arc<Self> {
        let pool = ThreadPool::new("racing", ThreadPoolLimits { threads: 16, ..ThreadPoolLimits::default() });
        let (is_dead, asked_in_vain) = (AtomicBool::new(false), AtomicU64::new(0));
        Arc::new(Self { lane: pool.lane(), _pool: pool, is_dead, asked_in_vain })
    }

    fn later<T: Send + 'static>(
        &self,
        cx: &Ctx,
        call: impl FnOnce() -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        if self.is_dead.load(Ordering::SeqCst) {
            self.asked_in_vain.fetch_add(1, Ordering::SeqCst);
            return Answer::err(Error::TimedOut);
        }
        self.lane.run(cx, move || {
            let answer = call().wait();
            std::thread::sleep(Duration::from_micros(fastrand::u64(..300)));
            answer
        })
    }
}

impl Export for Racing<dyn Export> {
    fn attach(&self, client: &Client) -> Result<Arc<dyn FileSystem>> {
        Ok(Arc::new(Racing(self.0.attach(client)?, self.1.clone())))
    }
}

impl FileSystem for Racing<dyn FileSystem> {
    fn lookup(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Entry> {
        let (inner, its, name) = (self.0.clone(), cx.clone(), name.to_owned());
        self.1.later(cx, move || inner.lookup(&its, parent, name.as_name()))
    }

    fn getattr(&self, cx: &Ctx, node: NodeId, file: Option<File>) -> Answer<Attr> {
        if cx.fetched_since.is_some() {
            return self.0.getattr(cx, node, file);
        }
        let (inner, its) = (self.0.clone(), cx.clone());
        self.1.later(cx, move || inner.getattr(&its, node, file))
    }

    fn access(&self, cx: &Ctx, node: NodeId, mask: AccessMask) -> Answer<()> {
        let (inner, its) = (self.0.clone(), cx.clone());
        self.1.later(cx, move || inner.access(&its, node, mask))
    }

    fn open(&self, cx: &Ctx, node: NodeId, flags: OpenFlags) -> Answer<Opened> {
        let (inner, its) = (self.0.clone(), cx.clone());
        self.1.later(cx, move || inner.open(&its, node, flags))
    }

    fn read(&self, cx: &Ctx, file: File, offset: u64, into: Sink) -> Answer<ReadDone> {
        let (inner, its) = (self.0.clone(), cx.clone());
        self.1.later(cx, move || inner.read(&its, file, offset, into))
    }

    fn readdir(&self, cx: &Ctx, file: File, cookie: Cookie, page: DirPage) -> Answer<DirPage> {
        let (inner, its) = (self.0.clone(), cx.clone());
        self.1.later(cx, move || inner.readdir(&its, file, cookie, page))
    }

    forward!(to self.0; setattr readlink create create_unnamed mkdir symlink mknod link unlink rmdir
        rename flush fsync write statfs syncfs forget release profile persistent_handles);
}

/// Returns the numbers of directories, files in each, and runs.
fn sizes() -> (usize, usize, u32) {
    match std::env::var_os("TOMBOLO_LONG") {
        Some(_) => (100, 100, 10),
        None => (12, 20, 3),
    }
}

fn make(session: &Session, dirs: usize, files: usize) {
    for dir in 0..dirs {
        let mode = NewMode::settled(Mode::new(0o755));
        let made = session.fs.mkdir(&session.cx, NodeId::ROOT, name(&format!("dir-{dir}")), mode);
        let parent = made.wait().expect("mkdir").entry.node;
        for file in 0..files {
            session.put_in(parent, &format!("file-{file}"), &pattern(100, file as u8));
        }
    }
}

/// Lists a directory and reads all its files, as `diff -r` does.
fn compare(session: &Session, node: NodeId) -> Result<usize> {
    let (fs, cx) = (&session.fs, &session.cx);
    let open = fs.open(cx, node, OpenFlags::READ | OpenFlags::DIRECTORY).wait()?.open;
    let (file, mut cookie, mut found) = (File { node, open }, Cookie::START, Vec::new());
    loop {
        let budget = DirBudget { size_bytes: 4096, entry_bytes: 24, align: 8, plus: true };
        let page = fs.readdir(cx, file, cookie, DirPage::new(budget)).wait()?;
        for entry in page.iter() {
            cookie = entry.cookie;
            found.push((String::from_utf8_lossy(entry.name).into_owned(), entry.file_type));
        }
        if page.is_end() {
            break;
        }
    }
    fs.release(cx, file);
    let mut count = 0;
    for (text, file_type) in found.iter().filter(|(text, _)| !matches!(&**text, "." | "..")) {
        let node = fs.lookup(cx, node, name(text)).wait()?.node;
        if *file_type == Some(FileType::Directory) {
            count += compare(session, node)?;
            continue;
        }
        let file = File { node, open: fs.open(cx, node, OpenFlags::READ).wait()?.open };
        assert_eq!(session.read(file, 0, 4096)?.len(), 100);
        fs.release(cx, file);
        count += 1;
    }
    Ok(count)
}

#[test]
fn repeated_read_does_not_use_the_origin() {
    let (dirs, files, runs) = sizes();
    let origin = Origin::new();
    make(&origin.direct, dirs, files);
    for contract in [Contract::Immutable, Contract::Exclusive] {
        for run in 0..runs {
            let (line, dir) = (Line::new(), tempfile::tempdir().expect("a directory"));
            let racing = Origin::of(Arc::new(Racing(origin.export.clone(), line.clone())));
            let cached = racing.cached(dir.path(), contract);
            assert_eq!(compare(&cached.session, NodeId::ROOT).expect("read"), dirs * files);
            line.is_dead.store(true, Ordering::SeqCst);
            // Prefetches may still fail for a while, which must not invalidate cached state.
            let again = compare(&cached.session, NodeId::ROOT);
            assert_eq!(again.expect("all is here"), dirs * files, "{contract:?}, run {run}");
        }
    }
}
