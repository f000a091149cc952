//! A network between caches and their common origin: each request and each answer pends until the simulation
//! delivers or drops it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tombolo_core::fs::{
    Attr, Change, Cookie, Created, DirEntry, DirPage, Entry, Export, File, FileSystem, LockOwner, Made, Name,
    NodeId, Opened, PersistentHandle, PersistentHandles, ReadDone, RenameFlags, Renamed, StatFs, SyncScope,
    Timestamp, Volume, WeakAttr, Write, Written, within,
};
use tombolo_core::{Answer, Ctx, Error, Result};
use tombolo_host_runtime::promise::Promise;
use tombolo_layer_basic::arguments::{Keep, Lend};
use tombolo_mem::{Sink, Source};
use tombolo_test_support::wrapped;

/// Relation of the origin's clock to the caches'.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The caches' own clock: a change just made has a recent time.
    Same,
    /// It ticks once a second.
    Coarse,
    /// An hour behind: no time is recent, and each change shows.
    Behind,
}

impl Clock {
    fn shown(self, time: Timestamp) -> Timestamp {
        match self {
            Self::Same => time,
            Self::Coarse => Timestamp { nanos: 0, ..time },
            Self::Behind => Timestamp { secs: time.secs - 3600, ..time },
        }
    }

    /// Converts attributes as seen over the network. Caches number files themselves, so the origin's number
    /// is sent as the time of birth, which caches pass on.
    pub fn stamp(self, attr: &mut Attr) {
        (attr.mtime, attr.ctime) = (self.shown(attr.mtime), self.shown(attr.ctime));
        attr.btime = Some(Timestamp { secs: attr.fileid.cast_signed(), nanos: 0 });
    }
}

/// Returns the origin's number of a file from attributes received over the network.
pub fn identity(attr: &Attr) -> u64 {
    attr.btime.map_or(0, |time| time.secs.cast_unsigned())
}

/// Callback for each request executed at the origin.
pub type Performed = Box<dyn Fn(u64) + Send + Sync>;

/// The link from one cache to the origin.
pub struct Link {
    origin: Arc<dyn Export>,
    clock: Clock,
    performed: Performed,
    /// `true` while messages are not delayed, as when a cache starts.
    is_open: AtomicBool,
    waiting: Mutex<Vec<Arc<Promise<bool>>>>,
}

impl Link {
    pub fn new(origin: Arc<dyn Export>, clock: Clock, performed: Performed) -> Arc<Self> {
        let (is_open, waiting) = (AtomicBool::new(false), Mutex::default());
        Arc::new(Self { origin, clock, performed, is_open, waiting })
    }

    pub fn set_open(&self, is_open: bool) {
        self.is_open.store(is_open, Ordering::Relaxed);
    }

    pub fn waiting(&self) -> usize {
        self.waiting.lock().expect("no panic").len()
    }

    /// Delivers or drops one message.
    pub fn deliver(&self, index: usize, arrives: bool) {
        let message = self.waiting.lock().expect("no panic").swap_remove(index);
        Promise::keep(&message, arrives);
    }

    /// Waits until a message is delivered.
    async fn pass(&self) -> Result<()> {
        if self.is_open.load(Ordering::Relaxed) {
            return Ok(());
        }
        let message = Arc::<Promise<bool>>::default();
        self.waiting.lock().expect("no panic").push(message.clone());
        if message.kept().await { Ok(()) } else { Err(Error::TimedOut) }
    }
}

/// Returns the remote end of a link, as an export.
pub fn far(link: Arc<Link>) -> Arc<dyn Export> {
    wrapped(link.origin.clone(), move |fs| Remote { link: link.clone(), fs, told: Arc::default() })
}

/// A session over the link.
struct Remote {
    link: Arc<Link>,
    fs: Arc<dyn FileSystem>,
    /// Newest attributes received with answers.
    told: Arc<Mutex<HashMap<NodeId, Told>>>,
}

/// Selection of attributes as in `back/nfs-client`, for a server that executes concurrent calls in any order:
/// the later change time is the newer.
struct Told {
    asked: Instant,
    came: Instant,
    attr: Attr,
    /// `true` if two overlapping answers differ at the same change time.
    is_ambiguous: bool,
}

impl Told {
    fn learn(&mut self, attr: Attr, asked: Instant) {
        let overlaps = asked < self.came;
        let is_older = overlaps && attr.ctime < self.attr.ctime;
        if is_older {
            return;
        }
        let same = WeakAttr::from(&attr) == WeakAttr::from(&self.attr) && attr.nlink == self.attr.nlink;
        let is_ambiguous = overlaps && attr.ctime == self.attr.ctime && (!same || self.is_ambiguous);
        *self = Self { asked: self.asked.max(asked), came: Instant::now(), attr, is_ambiguous };
    }
}

impl Remote {
    fn send<T: Payload>(
        &self,
        cx: &Ctx,
        about: NodeId,
        call: impl FnOnce(&dyn FileSystem, &Ctx) -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        let (link, fs, told) = (self.link.clone(), self.fs.clone(), self.told.clone());
        let (cx, asked) = (cx.clone(), Instant::now());
        Answer::later(async move {
            link.pass().await?;
            let mut answer = call(&*fs, &cx).resolve().await;
            answer.iter_mut().for_each(|answer| answer.stamp(link.clock));
            let mut attr = fs.getattr(&cx, about, None).resolve().await;
            attr.iter_mut().for_each(|attr| attr.stamp(link.clock));
            (link.performed)(cx.request.0);
            link.pass().await?;
            if let Ok(attr) = attr {
                let first = Told { asked, came: asked, attr, is_ambiguous: false };
                told.lock().expect("no panic").entry(about).or_insert(first).learn(attr, asked);
            }
            answer
        })
    }
}

/// A message over the network, whose attributes are converted.
trait Payload: Send + 'static {
    fn stamp(&mut self, _: Clock) {}
}

impl Payload for () {}
impl Payload for Vec<u8> {}
impl Payload for ReadDone {}
impl Payload for StatFs {}

impl Payload for Attr {
    fn stamp(&mut self, clock: Clock) {
        clock.stamp(self);
    }
}

impl Payload for Entry {
    fn stamp(&mut self, clock: Clock) {
        clock.stamp(&mut self.attr);
    }
}

impl Payload for Change {
    fn stamp(&mut self, clock: Clock) {
        if let Some(WeakAttr { mtime, ctime, .. }) = &mut self.before {
            (*mtime, *ctime) = (clock.shown(*mtime), clock.shown(*ctime));
        }
        self.after.iter_mut().for_each(|attr| clock.stamp(attr));
    }
}

impl Payload for (Attr, Change) {
    fn stamp(&mut self, clock: Clock) {
        clock.stamp(&mut self.0);
        self.1.stamp(clock);
    }
}

impl Payload for Made {
    fn stamp(&mut self, clock: Clock) {
        self.entry.stamp(clock);
        self.dir.stamp(clock);
    }
}

impl Payload for Created {
    fn stamp(&mut self, clock: Clock) {
        self.entry.stamp(clock);
        self.dir.stamp(clock);
    }
}

impl Payload for Opened {
    fn stamp(&mut self, clock: Clock) {
        self.attr.iter_mut().for_each(|attr| clock.stamp(attr));
    }
}

impl Payload for Renamed {
    fn stamp(&mut self, clock: Clock) {
        self.from_dir.stamp(clock);
        self.to_dir.stamp(clock);
    }
}

impl Payload for Written {
    fn stamp(&mut self, clock: Clock) {
        self.file.stamp(clock);
    }
}

impl Payload for DirPage {
    fn stamp(&mut self, clock: Clock) {
        let mut stamped = Self::new(self.budget());
        for listed in self.iter() {
            let mut entry = listed.entry.copied();
            entry.iter_mut().for_each(|entry| entry.stamp(clock));
            assert!(stamped.push(DirEntry { entry: entry.as_ref(), ..listed }), "it did fit");
        }
        if self.is_end() {
            stamped.set_end();
        }
        *self = stamped;
    }
}

impl FileSystem for Remote {
    tombolo_core::forward!(to self.fs; profile forget release);
    tombolo_core::forward!(own self; persistent_handles);
    tombolo_core::forward!(about self.send;
        lookup setattr access readlink create create_unnamed mkdir symlink mknod unlink rmdir open statfs
    );

    fn getattr(&self, cx: &Ctx, node: NodeId, file: Option<File>) -> Answer<Attr> {
        if let Some(since) = cx.fetched_since
            && let Some(told) = self.told.lock().expect("no panic").get(&node)
            && told.asked >= since
            && !told.is_ambiguous
        {
            return Answer::ok(told.attr);
        }
        self.send(cx, node, move |fs, cx| fs.getattr(cx, node, file))
    }

    fn link(&self, cx: &Ctx, node: NodeId, parent: NodeId, name: Name<'_>) -> Answer<Made> {
        let name = name.to_owned();
        self.send(cx, parent, move |fs, cx| fs.link(cx, node, parent, name.as_name()))
    }

    fn rename(
        &self,
        cx: &Ctx,
        from_parent: NodeId,
        from: Name<'_>,
        to_parent: NodeId,
        to: Name<'_>,
        flags: RenameFlags,
    ) -> Answer<Renamed> {
        let (from, to) = (from.to_owned(), to.to_owned());
        self.send(cx, to_parent, move |fs, cx| {
            fs.rename(cx, from_parent, from.as_name(), to_parent, to.as_name(), flags)
        })
    }

    fn flush(&self, cx: &Ctx, file: File, owner: LockOwner) -> Answer<()> {
        self.send(cx, file.node, move |fs, cx| fs.flush(cx, file, owner))
    }

    fn fsync(&self, cx: &Ctx, file: File, what: SyncScope) -> Answer<()> {
        self.send(cx, file.node, move |fs, cx| fs.fsync(cx, file, what))
    }

    fn read(&self, cx: &Ctx, file: File, offset: u64, into: Sink) -> Answer<ReadDone> {
        self.send(cx, file.node, move |fs, cx| fs.read(cx, file, offset, into))
    }

    fn write(&self, cx: &Ctx, file: File, how: &Write, from: Source) -> Answer<Written> {
        let how = *how;
        self.send(cx, file.node, move |fs, cx| fs.write(cx, file, &how, from))
    }

    fn readdir(&self, cx: &Ctx, file: File, cookie: Cookie, page: DirPage) -> Answer<DirPage> {
        self.send(cx, file.node, move |fs, cx| fs.readdir(cx, file, cookie, page))
    }

    fn syncfs(&self, cx: &Ctx) -> Answer<()> {
        self.send(cx, NodeId::ROOT, |fs, cx| fs.syncfs(cx))
    }
}

impl PersistentHandles for Remote {
    fn volume(&self) -> Volume {
        Volume::default()
    }

    tombolo_core::forward!(to self.fs; handle_of);

    fn resolve(&self, cx: &Ctx, handle: &PersistentHandle) -> Answer<Entry> {
        let handle = handle.clone();
        self.send(cx, NodeId::NONE, move |fs, cx| {
            within(fs.persistent_handles(), |handles| handles.resolve(cx, &handle))
        })
    }

    fn parent(&self, cx: &Ctx, node: NodeId) -> Answer<Entry> {
        self.send(cx, NodeId::NONE, move |fs, cx| {
            within(fs.persistent_handles(), |handles| handles.parent(cx, node))
        })
    }
}
