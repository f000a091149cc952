//! A file system that counts requests, and runs a test's code right after an answer was made.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tombolo_core::fs::{
    AccessMask, Attr, Cookie, DirPage, Entry, File, FileSystem, Name, NodeId, OpenFlags, Opened, ReadDone,
    Version, Versions, WindowMirror,
};
use tombolo_core::mem::{Region, Sink};
use tombolo_core::{Answer, Ctx, forward};

pub struct Spy {
    inner: Arc<dyn FileSystem>,
    counts: bool,
    requests: AtomicU64,
    look_ups: AtomicI64,
    look_ups_max: AtomicI64,
    after: Mutex<Option<(&'static str, Deed)>>,
}

type Deed = Box<dyn FnOnce() + Send>;

impl Spy {
    pub fn on(inner: Arc<dyn FileSystem>, counts: bool) -> Arc<Self> {
        let (look_ups, look_ups_max) = (AtomicI64::new(0), AtomicI64::new(0));
        Arc::new(Self {
            inner,
            counts,
            requests: AtomicU64::new(0),
            look_ups,
            look_ups_max,
            after: Mutex::default(),
        })
    }

    /// Returns the number of requests so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }

    /// Returns the number of look-ups not released yet, and its maximum.
    pub fn look_ups(&self) -> (i64, i64) {
        (self.look_ups.load(Ordering::SeqCst), self.look_ups_max.load(Ordering::SeqCst))
    }

    /// Runs `deed` after the next operation of this name, before its answer arrives.
    pub fn after(&self, operation: &'static str, deed: impl FnOnce() + Send + 'static) {
        *self.after.lock().unwrap() = Some((operation, Box::new(deed)));
    }

    pub fn is_done(&self) -> bool {
        self.after.lock().unwrap().is_none()
    }

    fn ask<T: Send + 'static>(
        &self,
        operation: &str,
        ask: impl FnOnce(&dyn FileSystem) -> Answer<T>,
    ) -> Answer<T> {
        self.requests.fetch_add(1, Ordering::SeqCst);
        let deed = {
            let mut after = self.after.lock().unwrap();
            let is_it = after.as_ref().is_some_and(|(of, _)| *of == operation);
            if is_it { after.take() } else { None }
        };
        match deed {
            None => ask(&*self.inner),
            Some((_, deed)) => {
                let answered = ask(&*self.inner).wait();
                deed();
                Answer::Done(answered)
            }
        }
    }
}

impl FileSystem for Spy {
    forward!(to self.inner;
        setattr create create_unnamed mkdir symlink mknod link unlink rmdir rename release flush fsync write statfs syncfs profile
    );

    fn lookup(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Entry> {
        let answer = self.ask("lookup", |fs| fs.lookup(cx, parent, name)).wait();
        if answer.is_ok() {
            let now = self.look_ups.fetch_add(1, Ordering::SeqCst) + 1;
            self.look_ups_max.fetch_max(now, Ordering::SeqCst);
        }
        Answer::Done(answer)
    }

    fn forget(&self, cx: &Ctx, look_ups: &[(NodeId, u64)]) {
        let count = look_ups.iter().map(|(_, count)| *count as i64).sum::<i64>();
        self.look_ups.fetch_sub(count, Ordering::SeqCst);
        self.inner.forget(cx, look_ups);
    }

    fn getattr(&self, cx: &Ctx, node: NodeId, file: Option<File>) -> Answer<Attr> {
        self.ask("getattr", |fs| fs.getattr(cx, node, file))
    }

    fn access(&self, cx: &Ctx, node: NodeId, mask: AccessMask) -> Answer<()> {
        self.ask("access", |fs| fs.access(cx, node, mask))
    }

    fn readlink(&self, cx: &Ctx, node: NodeId) -> Answer<Vec<u8>> {
        self.ask("readlink", |fs| fs.readlink(cx, node))
    }

    fn open(&self, cx: &Ctx, node: NodeId, flags: OpenFlags) -> Answer<Opened> {
        self.ask("open", |fs| fs.open(cx, node, flags))
    }

    fn read(&self, cx: &Ctx, file: File, offset: u64, into: Sink) -> Answer<ReadDone> {
        self.ask("read", |fs| fs.read(cx, file, offset, into))
    }

    fn readdir(&self, cx: &Ctx, file: File, cookie: Cookie, page: DirPage) -> Answer<DirPage> {
        self.ask("readdir", |fs| fs.readdir(cx, file, cookie, page))
    }

    fn versions(&self) -> Option<&dyn Versions> {
        self.inner.versions().filter(|_| self.counts).map(|_| self as &dyn Versions)
    }
}

impl Versions for Spy {
    fn look(&self, cx: &Ctx, node: NodeId) -> Answer<(Attr, Option<Version>)> {
        self.ask("look", |fs| fs.versions().expect("versions").look(cx, node))
    }

    fn hold(&self, versions: &[Version]) -> bool {
        self.inner.versions().expect("versions").hold(versions)
    }

    fn window(&self) -> Option<Arc<OwnedFd>> {
        None
    }

    fn mirror(&self, _: &Region, _: usize) -> Option<Box<dyn WindowMirror>> {
        None
    }
}
