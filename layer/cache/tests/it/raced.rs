//! Replies out of order: the facts of each are cached.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tombolo_core::fs::{
    AccessMask, Attr, Cookie, DirPage, Entry, File, FileSystem, FileType, Name, NodeId, OpenFlags, Opened,
    ReadDone,
};
use tombolo_core::{Answer, Ctx, Error, Result, forward};
use tombolo_host_runtime::thread_pool::{Lane, ThreadPool, ThreadPoolLimits};
use tombolo_layer_cache::Contract;
use tombolo_mem::Sink;
use tombolo_test_support::{Session, budget, wrapped};

use crate::world::{Origin, pattern};

/// A session of an origin that answers concurrent requests out of order, until it fails.
struct Racing(Arc<dyn FileSystem>, Arc<Line>);

struct Line {
    lane: Lane,
    _pool: ThreadPool,
    is_dead: AtomicBool,
}

impl Line {
    fn new() -> Arc<Self> {
        let pool = ThreadPool::new("racing", ThreadPoolLimits { threads: 16, ..ThreadPoolLimits::default() });
        Arc::new(Self { lane: pool.lane(), _pool: pool, is_dead: AtomicBool::new(false) })
    }
}

impl Racing {
    fn later<T: Send + 'static>(
        &self,
        cx: &Ctx,
        call: impl FnOnce(&dyn FileSystem, &Ctx) -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        let Self(fs, line) = self;
        if line.is_dead.load(Ordering::SeqCst) {
            return Answer::err(Error::TimedOut);
        }
        let (fs, its) = (fs.clone(), cx.clone());
        line.lane.run(cx, move || {
            let answer = call(&*fs, &its).wait();
            std::thread::sleep(Duration::from_micros(fastrand::u64(..300)));
            answer
        })
    }
}

impl FileSystem for Racing {
    fn lookup(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Entry> {
        let name = name.to_owned();
        self.later(cx, move |fs, cx| fs.lookup(cx, parent, name.as_name()))
    }

    fn getattr(&self, cx: &Ctx, node: NodeId, file: Option<File>) -> Answer<Attr> {
        match cx.fetched_since {
            Some(_) => self.0.getattr(cx, node, file),
            None => self.later(cx, move |fs, cx| fs.getattr(cx, node, file)),
        }
    }

    fn access(&self, cx: &Ctx, node: NodeId, mask: AccessMask) -> Answer<()> {
        self.later(cx, move |fs, cx| fs.access(cx, node, mask))
    }

    fn open(&self, cx: &Ctx, node: NodeId, flags: OpenFlags) -> Answer<Opened> {
        self.later(cx, move |fs, cx| fs.open(cx, node, flags))
    }

    fn read(&self, cx: &Ctx, file: File, offset: u64, into: Sink) -> Answer<ReadDone> {
        self.later(cx, move |fs, cx| fs.read(cx, file, offset, into))
    }

    fn readdir(&self, cx: &Ctx, file: File, cookie: Cookie, page: DirPage) -> Answer<DirPage> {
        self.later(cx, move |fs, cx| fs.readdir(cx, file, cookie, page))
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
        let parent = session.dir(&format!("dir-{dir}"));
        for file in 0..files {
            session.put((parent, &format!("file-{file}")), &pattern(100, file as u8));
        }
    }
}

/// Lists a directory and reads all its files, as `diff -r` does.
fn compare(session: &Session, node: NodeId) -> Result<usize> {
    let (file, mut cookie, mut found) = (session.open_dir(node)?, Cookie::START, Vec::new());
    loop {
        let page = session.readdir(file, cookie, budget(4096, true))?;
        for entry in page.iter() {
            cookie = entry.cookie;
            found.push((String::from_utf8_lossy(entry.name).into_owned(), entry.file_type));
        }
        if page.is_end() {
            break;
        }
    }
    session.release(file);
    let mut count = 0;
    for (text, file_type) in found.iter().filter(|(text, _)| !matches!(&**text, "." | "..")) {
        let node = session.lookup((node, text))?.node;
        if *file_type == Some(FileType::Directory) {
            count += compare(session, node)?;
            continue;
        }
        let file = session.open(node, OpenFlags::READ)?;
        assert_eq!(session.read(file, 0, 4096)?.len(), 100);
        session.release(file);
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
            let busy = line.clone();
            let racing = Origin::of(wrapped(origin.export.clone(), move |inner| Racing(inner, busy.clone())));
            let cached = racing.cached(dir.path(), contract);
            assert_eq!(compare(&cached, NodeId::ROOT).expect("read"), dirs * files);
            line.is_dead.store(true, Ordering::SeqCst);
            // Prefetches may still fail for a while, which must not invalidate cached state.
            let again = compare(&cached, NodeId::ROOT);
            assert_eq!(again.expect("all is here"), dirs * files, "{contract:?}, run {run}");
        }
    }
}
