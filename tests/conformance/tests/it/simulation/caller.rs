//! Clients of a cache, and verification of each answer.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tombolo_core::fs::{
    Attr, Cookie, Create, DirPage, File, FileSystem, LockOwner, Mode, NodeId, OpenFlags, PersistentHandle,
    RenameFlags, SetAttr, Write,
};
use tombolo_core::{Ctx, Error, RequestId, SessionId};
use tombolo_mem::{Buffer, Source};
use tombolo_test_support::{budget, mode, name, plain};

use super::history::{History, Time, Window};
use super::network::identity;

/// All directories, and all names in them.
pub const DIRS: [&str; 3] = ["", "d", "e"];
pub const NAMES: [&str; 4] = ["a", "b", "c", "l"];

/// State shared by all callers.
pub struct World {
    pub history: Mutex<History>,
    /// Violations found.
    pub wrong: Mutex<Vec<String>>,
    pub log: Mutex<Vec<String>>,
    /// Unanswered client operations, by cache.
    pub pending: [AtomicUsize; 2],
    /// Nodes that the clients of each cache were given.
    given: [Mutex<Vec<NodeId>>; 2],
    /// The origin's number of each file that a cache has numbered: it never changes.
    numbers: Mutex<HashMap<(usize, NodeId), u64>>,
    requests: AtomicU64,
    tags: AtomicU64,
}

/// Staleness that a cache's contract permits for changes by others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    pub looks_are_new: bool,
    pub opens_are_new: bool,
}

/// A client of a cache.
#[derive(Clone)]
pub struct Caller {
    pub world: Arc<World>,
    pub cache: usize,
    pub promise: Promise,
    pub fs: Arc<dyn FileSystem>,
}

/// A file as known to a caller: the cache's node and the origin's number.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    pub node: NodeId,
    pub id: u64,
}

const ROOT: Node = Node { node: NodeId::ROOT, id: 1 };

/// An opening and the time of its request.
#[derive(Clone, Copy)]
pub struct Held {
    pub file: File,
    id: u64,
    began: Time,
}

/// A name in the root or one of its directories.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub dir: &'static str,
    pub name: &'static str,
}

/// An operation of a client.
#[derive(Clone, Copy, Debug)]
pub enum Action {
    Stat(Place),
    Read(Place, usize, usize),
    Write(Place, OpenFlags, usize, usize),
    Truncate(Place, u64),
    Chmod(Place, u32),
    Mkdir(Place),
    Symlink(Place),
    Link(Place, Place),
    Unlink(Place),
    Rmdir(Place),
    Rename(Place, Place, RenameFlags),
    List(&'static str, bool),
}

/// One operation.
struct Op {
    cx: Ctx,
    began: Time,
}

type Outcome<T> = Result<T, Error>;

impl World {
    pub fn new(history: History) -> Arc<Self> {
        let (wrong, log, numbers) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (requests, tags) = (AtomicU64::new(1), AtomicU64::new(1));
        let (history, pending) = (Mutex::new(history), [AtomicUsize::new(0), AtomicUsize::new(0)]);
        let given = Default::default();
        Arc::new(Self { history, wrong, log, pending, given, numbers, requests, tags })
    }

    pub fn fail(&self, text: String) {
        self.note(format_args!("WRONG {text}"));
        self.wrong.lock().expect("no panic").push(text);
    }

    pub fn note(&self, text: impl std::fmt::Display) {
        let now = self.history.lock().expect("no panic").now;
        self.log.lock().expect("no panic").push(format!("{now}: {text}"));
    }

    /// Returns bytes that no other call returns.
    pub fn bytes(&self, len: usize) -> Vec<u8> {
        let tag = self.tags.fetch_add(1, Ordering::Relaxed) as usize;
        (0..len).map(|at| (tag * 37 + at / 512) as u8).collect()
    }

    pub fn next_request(&self) -> u64 {
        self.requests.fetch_add(1, Ordering::Relaxed)
    }
}

impl Caller {
    /// Executes an action and verifies each answer.
    pub async fn perform(&self, action: Action) {
        let (cache, world) = (self.cache, &self.world);
        world.note(format_args!("cache {cache}: {action:?}"));
        let outcome = self.act(action).await;
        world.note(format_args!("cache {cache}: {action:?}: {outcome:?}"));
    }

    async fn act(&self, action: Action) -> Outcome<()> {
        match action {
            Action::Stat(place) => {
                let node = self.find(place).await?;
                self.stat(node).await
            }
            Action::Read(place, offset, len) => {
                let node = self.find(place).await?;
                let held = self.open(node, OpenFlags::READ).await?;
                let read = self.read(held, offset, len).await;
                let rest = self.read(held, 0, 1 << 16).await;
                self.fs.release(&self.cx(), held.file);
                read.and(rest)
            }
            Action::Write(place, flags, offset, len) => self.write(place, flags, offset, len).await,
            Action::Truncate(place, size) => {
                self.set(place, SetAttr { size: Some(size), ..SetAttr::default() }).await
            }
            Action::Chmod(place, mode) => {
                self.set(place, SetAttr { mode: Some(Mode::new(mode)), ..SetAttr::default() }).await
            }
            Action::Link(from, to) => {
                let (node, dir) = (self.find(from).await?, self.dir(to.dir).await?);
                let op = self.begin();
                let made = self.fs.link(&op.cx, node.node, dir.node, name(to.name)).resolve().await;
                self.ended(&op, node.id, made).map(drop)
            }
            Action::Rename(from, to, flags) => {
                let (from_dir, to_dir) = (self.dir(from.dir).await?, self.dir(to.dir).await?);
                let op = self.begin();
                let (old, new) = (name(from.name), name(to.name));
                let done = self.fs.rename(&op.cx, from_dir.node, old, to_dir.node, new, flags);
                let done = done.resolve().await;
                self.ended(&op, from_dir.id, done).map(drop)
            }
            Action::List(dir, plus) => {
                let dir = self.dir(dir).await?;
                self.list(dir, plus).await
            }
            Action::Mkdir(place) | Action::Symlink(place) | Action::Unlink(place) | Action::Rmdir(place) => {
                self.change_name(action, place).await
            }
        }
    }

    async fn change_name(&self, action: Action, place: Place) -> Outcome<()> {
        let dir = self.dir(place.dir).await?;
        let (op, fs, at) = (self.begin(), &self.fs, name(place.name));
        match action {
            Action::Mkdir(_) => {
                let made = fs.mkdir(&op.cx, dir.node, at, mode(0o755)).resolve().await;
                let made = self.ended(&op, dir.id, made)?;
                self.found(&op, dir, place.name, made.entry.node, &made.entry.attr).map(drop)
            }
            Action::Symlink(_) => {
                let target = self.world.bytes(8);
                let made = fs.symlink(&op.cx, dir.node, at, &target).resolve().await;
                let made = self.ended(&op, dir.id, made)?;
                let made = self.found(&op, dir, place.name, made.entry.node, &made.entry.attr)?;
                let op = self.begin();
                let read = fs.readlink(&op.cx, made.node).resolve().await;
                let read = self.ended(&op, made.id, read)?;
                if read != target {
                    self.world.fail(format!("cache {}: the link {place:?} leads elsewhere", self.cache));
                }
                Ok(())
            }
            Action::Rmdir(_) => {
                let removed = fs.rmdir(&op.cx, dir.node, at).resolve().await;
                self.ended(&op, dir.id, removed).map(drop)
            }
            _ => {
                let removed = fs.unlink(&op.cx, dir.node, at).resolve().await;
                self.ended(&op, dir.id, removed).map(drop)
            }
        }
    }

    async fn write(&self, place: Place, flags: OpenFlags, offset: usize, len: usize) -> Outcome<()> {
        let dir = self.dir(place.dir).await?;
        let op = self.begin();
        let create = Create { flags, ..plain() };
        let created = self.fs.create(&op.cx, dir.node, name(place.name), &create).resolve().await;
        let created = self.ended(&op, dir.id, created)?;
        let file = File { node: created.entry.node, open: created.open };
        let found = self.found(&op, dir, place.name, file.node, &created.entry.attr);
        let written = match found {
            Ok(found) => self.write_to(found, file, flags, offset, len).await,
            Err(error) => Err(error),
        };
        self.fs.release(&self.cx(), file);
        written
    }

    async fn write_to(
        &self,
        node: Node,
        file: File,
        flags: OpenFlags,
        offset: usize,
        len: usize,
    ) -> Outcome<()> {
        for part in 0..2 {
            let op = self.begin();
            let how = Write { offset: (offset + part * len) as u64, ..Write::default() };
            let source = Source::from(self.world.bytes(len));
            let written = self.fs.write(&op.cx, file, &how, source).resolve().await;
            self.ended(&op, node.id, written)?;
            if flags.contains(OpenFlags::READ) {
                let held = Held { file, id: node.id, began: op.began };
                self.read(held, offset, len).await?;
            }
        }
        let op = self.begin();
        let flushed = self.fs.flush(&op.cx, file, LockOwner(1)).resolve().await;
        self.ended(&op, node.id, flushed)
    }

    async fn set(&self, place: Place, set: SetAttr) -> Outcome<()> {
        let node = self.find(place).await?;
        let op = self.begin();
        let set = self.fs.setattr(&op.cx, node.node, None, &set).resolve().await;
        let (attr, _) = self.ended(&op, node.id, set)?;
        self.check_attr(&op, node.id, &attr, self.looks(&op));
        Ok(())
    }

    async fn stat(&self, node: Node) -> Outcome<()> {
        let op = self.begin();
        let attr = self.fs.getattr(&op.cx, node.node, None).resolve().await;
        let attr = self.ended(&op, node.id, attr)?;
        self.check_attr(&op, node.id, &attr, self.looks(&op));
        Ok(())
    }

    async fn dir(&self, dir: &'static str) -> Outcome<Node> {
        if dir.is_empty() { Ok(ROOT) } else { self.lookup(ROOT, dir).await }
    }

    pub async fn find(&self, place: Place) -> Outcome<Node> {
        let dir = self.dir(place.dir).await?;
        self.lookup(dir, place.name).await
    }

    async fn lookup(&self, dir: Node, text: &'static str) -> Outcome<Node> {
        let op = self.begin();
        let found = self.fs.lookup(&op.cx, dir.node, name(text)).resolve().await;
        match self.ended(&op, dir.id, found) {
            Ok(entry) => self.found(&op, dir, text, entry.node, &entry.attr),
            Err(error) => {
                if matches!(error, Error::NotFound) {
                    self.check_name(&op, dir.id, text.as_bytes(), None);
                }
                Err(error)
            }
        }
    }

    /// Gives all nodes back, once no operation uses them.
    pub fn forget(&self) {
        if self.world.pending[self.cache].load(Ordering::Relaxed) == 0 {
            let given = std::mem::take(&mut *self.world.given[self.cache].lock().expect("no panic"));
            let given: Vec<_> = given.into_iter().map(|node| (node, 1)).collect();
            self.fs.forget(&self.cx(), &given);
        }
    }

    /// Verifies that name, node and attributes were valid together.
    fn found(&self, op: &Op, dir: Node, text: &str, node: NodeId, attr: &Attr) -> Outcome<Node> {
        let id = identity(attr);
        self.world.given[self.cache].lock().expect("no panic").push(node);
        self.check_number(node, id);
        self.check_name(op, dir.id, text.as_bytes(), Some(id));
        self.check_attr(op, id, attr, self.looks(op));
        Ok(Node { node, id })
    }

    pub async fn open(&self, node: Node, flags: OpenFlags) -> Outcome<Held> {
        let op = self.begin();
        let opened = self.fs.open(&op.cx, node.node, flags).resolve().await;
        let opened = self.ended(&op, node.id, opened)?;
        if let Some(attr) = opened.attr {
            // Opening a directory counts as a look-up.
            let is_look = flags.contains(OpenFlags::DIRECTORY);
            let are_new = self.promise.opens_are_new && !is_look || self.promise.looks_are_new;
            let window = self.window(&op, op.began, are_new);
            self.check_attr(&op, node.id, &attr, window);
        }
        let file = File { node: node.node, open: opened.open };
        Ok(Held { file, id: node.id, began: op.began })
    }

    /// Reads through an opening and verifies that the file had these data at some time since the open.
    pub async fn read(&self, held: Held, offset: usize, len: usize) -> Outcome<()> {
        let op = self.begin();
        let mut buffer = Buffer::new(len);
        let done = self.fs.read(&op.cx, held.file, offset as u64, buffer.sink(0..len)).resolve().await;
        let done = self.ended(&op, held.id, done)?;
        let read = buffer.as_slice().expect("free again")[..done.count].to_vec();
        let window = self.window(&op, held.began, self.promise.opens_are_new);
        let holds = self.history(|history| history.has_held(held.id, offset, &read, len, window));
        if !holds {
            let (begins, told) =
                (read.get(..read.len().min(4)), self.history(|history| history.told(held.id)));
            self.world.fail(format!(
                "cache {} reads {} bytes {begins:?} at {offset} (of {len}) of {} within {window:?}; it was\n    {told}",
                self.cache,
                read.len(),
                held.id
            ));
        }
        Ok(())
    }

    /// Lists a directory, in small pages for every second request.
    async fn list(&self, dir: Node, plus: bool) -> Outcome<()> {
        let held = self.open(dir, OpenFlags::READ | OpenFlags::DIRECTORY).await?;
        let op = self.begin();
        let listed = self.list_pages(dir, held.file, plus, &op).await;
        self.fs.release(&self.cx(), held.file);
        let listed = listed?;
        for text in NAMES.iter().chain(&DIRS[1..]) {
            if !listed.iter().any(|listed| listed == text.as_bytes()) {
                self.check_name(&op, dir.id, text.as_bytes(), None);
            }
        }
        Ok(())
    }

    /// Returns the names on all pages.
    async fn list_pages(&self, dir: Node, file: File, plus: bool, first: &Op) -> Outcome<Vec<Vec<u8>>> {
        let size_bytes = if first.cx.request.0.is_multiple_of(2) { 1 << 16 } else { 80 };
        let (mut names, mut cookie) = (Vec::new(), Cookie::START);
        loop {
            let op = self.begin();
            let page = DirPage::new(budget(size_bytes, plus));
            let page = self.fs.readdir(&op.cx, file, cookie, page).resolve().await;
            let page = self.ended(&op, dir.id, page)?;
            for listed in page.iter() {
                cookie = listed.cookie;
                names.push(listed.name.to_vec());
                if let Some(entry) = listed.entry {
                    let text = String::from_utf8_lossy(listed.name).into_owned();
                    self.found(&op, dir, &text, entry.node, &entry.attr)?;
                }
            }
            if page.is_end() {
                return Ok(names);
            }
            if page.is_empty() {
                self.world.fail(format!("cache {}: an empty page of {} is not the last", self.cache, dir.id));
                return Err(Error::InvalidArgument);
            }
        }
    }

    /// Requests a file's handle.
    pub async fn handle(&self, place: Place) -> Outcome<(Node, PersistentHandle)> {
        let node = self.find(place).await?;
        let handles = self.fs.persistent_handles().ok_or(Error::NotSupported)?;
        Ok((node, handles.handle_of(&self.cx(), node.node).resolve().await?))
    }

    /// Resolves a handle, which must give its own file or fail.
    pub async fn resolve(&self, node: Node, handle: PersistentHandle) -> Outcome<()> {
        let op = self.begin();
        let handles = self.fs.persistent_handles().ok_or(Error::NotSupported)?;
        let entry = handles.resolve(&op.cx, &handle).resolve().await;
        if matches!(entry, Err(Error::Stale)) && self.has_other_number(node) {
            return Err(Error::Stale);
        }
        let entry = self.ended(&op, node.id, entry)?;
        self.world.given[self.cache].lock().expect("no panic").push(entry.node);
        if (entry.node, identity(&entry.attr)) != (node.node, node.id) {
            self.world.fail(format!("cache {}: a handle of {node:?} leads to {entry:?}", self.cache));
        }
        Ok(())
    }

    /// Returns `true` if an evicted file may have got another number since that is in use.
    fn has_other_number(&self, node: Node) -> bool {
        if self.world.pending[self.cache].load(Ordering::Relaxed) > 1 {
            return true;
        }
        let numbers = self.world.numbers.lock().expect("no panic");
        numbers
            .iter()
            .any(|((cache, other), id)| (*cache, *id) == (self.cache, node.id) && *other != node.node)
    }

    fn begin(&self) -> Op {
        let request = self.world.next_request();
        let began = self.history(|history| history.now);
        Op { cx: Ctx { request: RequestId(request), ..self.cx() }, began }
    }

    /// Verifies the outcome of an operation on a file: only some errors are possible.
    fn ended<T>(&self, op: &Op, id: u64, outcome: Outcome<T>) -> Outcome<T> {
        self.history(|history| history.answered(op.cx.request.0));
        let can_be = match &outcome {
            Ok(_) => true,
            Err(Error::Stale) => self.history(|history| history.is_gone(id, history.now)),
            Err(error) => matches!(
                error,
                Error::TimedOut
                    | Error::NotFound
                    | Error::Exists
                    | Error::NotEmpty
                    | Error::IsDirectory
                    | Error::NotDirectory
                    | Error::InvalidArgument
                    | Error::NotPermitted
                    | Error::SymlinkLoop
                    | Error::NotSupported
            ),
        };
        if let (false, Err(error)) = (can_be, &outcome) {
            let told = self.history(|history| history.told(id));
            let (cache, request) = (self.cache, op.cx.request.0);
            self.world
                .fail(format!("cache {cache}: request {request} on {id}: {error:?}; it was\n    {told}"));
        }
        outcome
    }

    /// Returns the window of a query: the state when it began, or an older one if the contract permits.
    fn looks(&self, op: &Op) -> Window {
        self.window(op, op.began, self.promise.looks_are_new)
    }

    fn window(&self, op: &Op, others: Time, are_new: bool) -> Window {
        let end = self.history(|history| history.now);
        Window { cache: self.cache, own: op.began, others: are_new.then_some(others), end }
    }

    fn check_number(&self, node: NodeId, id: u64) {
        let before = self.world.numbers.lock().expect("no panic").insert((self.cache, node), id);
        if before.is_some_and(|before| before != id) {
            self.world.fail(format!("cache {}: {node:?} was {before:?}, and is {id} now", self.cache));
        }
    }

    fn check_name(&self, op: &Op, dir: u64, text: &[u8], leads_to: Option<u64>) {
        let window = self.looks(op);
        if !self.history(|history| history.has_led(dir, text, leads_to, window)) {
            let told = self.history(|history| history.name_told(dir, text));
            let text = String::from_utf8_lossy(text);
            self.world.fail(format!(
                "cache {}: {text} in {dir} leads to {leads_to:?} within {window:?}; it was\n    {told}",
                self.cache
            ));
        }
    }

    fn check_attr(&self, op: &Op, id: u64, attr: &Attr, window: Window) {
        if identity(attr) != id || !self.history(|history| history.has_been_like(id, attr, window)) {
            let told = self.history(|history| history.told(id));
            self.world.fail(format!(
                "cache {}: request {} shows {id} as {} bytes, {:o}, {} names, {:?}, within {window:?}; it was\n    {told}",
                self.cache,
                op.cx.request.0,
                attr.size,
                attr.mode.bits(),
                attr.nlink,
                attr.ctime,
            ));
        }
    }

    fn history<T>(&self, ask: impl FnOnce(&mut History) -> T) -> T {
        ask(&mut self.world.history.lock().expect("no panic"))
    }

    fn cx(&self) -> Ctx {
        Ctx::root(SessionId(1 + self.cache as u64))
    }
}
