//! History of the origin: each answer of a cache must have been valid at a time that its contract permits.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use tombolo_core::fs::{Attr, Cookie, File, FileType, NodeId, OpenFlags, OpenId, Timestamp};
use tombolo_test_support::{Session, budget};

use super::network::Clock;

/// A step of the simulation.
pub type Time = u64;

/// The cache that made a change and the client request that caused it; 0 for a change at the origin itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Author {
    pub cache: usize,
    pub request: u64,
}

/// A file at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileState {
    pub size: u64,
    pub mode: u32,
    pub nlink: u32,
    pub times: (Timestamp, Timestamp),
    pub bytes: Arc<[u8]>,
}

/// Period in which an answer must have been valid.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// The cache that answers.
    pub cache: usize,
    /// Changes through this cache answered before this must be visible.
    pub own: Time,
    /// Changes by others before this must be visible; `None` if the contract promises nothing.
    pub others: Option<Time>,
    pub end: Time,
}

struct Since<T> {
    from: Time,
    by: Author,
    what: T,
}

/// A directory's number, and a name in it.
type Place = (u64, Vec<u8>);

/// All states of the origin so far.
pub struct History {
    pub now: Time,
    origin: Session,
    clock: Clock,
    files: BTreeMap<u64, (File, Vec<Since<FileState>>)>,
    names: BTreeMap<Place, Vec<Since<Option<u64>>>>,
    /// When requests were answered.
    answered: HashMap<u64, Time>,
}

const ROOT: u64 = NodeId::ROOT.0;

const BYTES_MAX: usize = 1 << 17;

impl History {
    pub fn new(origin: Session, clock: Clock) -> Self {
        let (files, names) = (BTreeMap::new(), BTreeMap::new());
        Self { now: 1, origin, clock, files, names, answered: HashMap::new() }
    }

    pub fn answered(&mut self, request: u64) {
        self.now += 1;
        self.answered.insert(request, self.now);
    }

    /// Records the origin's state after a possible change.
    pub fn observe(&mut self, by: Author) {
        self.now += 1;
        let (mut dirs, mut named) = (vec![NodeId::ROOT], BTreeSet::new());
        self.observe_file(NodeId::ROOT, by);
        while let Some(dir) = dirs.pop() {
            for (name, node, file_type) in self.list(dir) {
                self.observe_name((dir.0, name.clone()), Some(node.0), by);
                named.insert((dir.0, name));
                self.observe_file(node, by);
                if file_type == FileType::Directory {
                    dirs.push(node);
                }
            }
        }
        let gone: Vec<_> = self.names.keys().filter(|place| !named.contains(*place)).cloned().collect();
        gone.into_iter().for_each(|place| self.observe_name(place, None, by));
        let all: Vec<_> = self.files.keys().copied().collect();
        all.into_iter().for_each(|file| self.observe_file(NodeId(file), by));
    }

    fn list(&self, dir: NodeId) -> Vec<(Vec<u8>, NodeId, FileType)> {
        let file = self.origin.open_dir(dir).expect("a directory");
        let page = self.origin.readdir(file, Cookie::START, budget(1 << 16, true)).expect("a listing");
        assert!(page.is_end(), "directories are small");
        self.origin.release(file);
        let found = page.iter().filter_map(|listed| {
            let entry = listed.entry?;
            Some((listed.name.to_vec(), entry.node, entry.attr.file_type))
        });
        found.collect()
    }

    fn observe_name(&mut self, place: Place, leads_to: Option<u64>, by: Author) {
        let known = self.names.entry(place).or_default();
        if known.last().is_none_or(|last| last.what != leads_to) {
            known.push(Since { from: self.now, by, what: leads_to });
        }
    }

    fn observe_file(&mut self, node: NodeId, by: Author) {
        let origin = &self.origin;
        let attr = origin.attr(node);
        let (file, known) = self.files.entry(node.0).or_insert_with(|| {
            let opened = match attr.file_type {
                FileType::Regular => origin.open(node, OpenFlags::READ),
                _ => origin.open_dir(node),
            };
            (opened.unwrap_or(File { node, open: OpenId(0) }), Vec::new())
        });
        let bare = state_of(self.clock, &attr);
        let same =
            known.last().filter(|last| FileState { bytes: Arc::default(), ..last.what.clone() } == bare);
        // Every change advances the clock, except a coarse one.
        if same.is_some() && self.clock != Clock::Coarse {
            return;
        }
        let bytes = match attr.file_type {
            FileType::Regular => origin.read(*file, 0, BYTES_MAX).expect("read"),
            _ => Vec::new(),
        };
        let what = FileState { bytes: bytes.into(), ..bare };
        if known.last().is_none_or(|last| last.what != what) {
            known.push(Since { from: self.now, by, what });
        }
    }

    /// Returns `true` if the name led to this node in this window.
    pub fn has_led(&self, dir: u64, name: &[u8], leads_to: Option<u64>, window: Window) -> bool {
        match self.names.get(&(dir, name.to_vec())) {
            Some(known) => {
                let begins_unknown = leads_to.is_none() && self.covers(known, None, window);
                begins_unknown || self.has_been(known, window, |led| *led == leads_to)
            }
            None => leads_to.is_none(),
        }
    }

    /// Returns `true` if the file had these attributes in this window.
    pub fn has_been_like(&self, file: u64, attr: &Attr, window: Window) -> bool {
        let shown = FileState { times: (attr.mtime, attr.ctime), ..state_of(Clock::Same, attr) };
        self.file(file, window, |state| FileState { bytes: Arc::default(), ..state.clone() } == shown)
    }

    /// Returns `true` if the file had these data at this offset in this window, and ended there if fewer than
    /// `len` bytes were read.
    pub fn has_held(&self, file: u64, offset: usize, read: &[u8], len: usize, window: Window) -> bool {
        self.file(file, window, |state| {
            let from = offset.min(state.bytes.len());
            state.bytes[from..state.bytes.len().min(offset + len)] == *read
        })
    }

    /// Returns `true` if the file had lost its last name by then.
    pub fn is_gone(&self, file: u64, end: Time) -> bool {
        let known = self.files.get(&file);
        known.is_none_or(|(_, known)| known.iter().any(|since| since.from <= end && since.what.nlink == 0))
    }

    fn file(&self, file: u64, window: Window, is_it: impl Fn(&FileState) -> bool) -> bool {
        self.files.get(&file).is_some_and(|(_, known)| self.has_been(known, window, is_it))
    }

    fn has_been<T>(&self, known: &[Since<T>], window: Window, is_it: impl Fn(&T) -> bool) -> bool {
        let mut at = known.iter().enumerate().filter(|(_, since)| is_it(&since.what));
        at.any(|(index, _)| self.covers(known, Some(index), window))
    }

    /// Returns `true` if a state (`None`: the initial one) may be visible in this window.
    fn covers<T>(&self, known: &[Since<T>], index: Option<usize>, window: Window) -> bool {
        if index.is_some_and(|index| known[index].from > window.end) {
            return false;
        }
        known.iter().skip(index.map_or(0, |index| index + 1)).all(|later| {
            if later.by.cache == window.cache {
                self.answered.get(&later.by.request).is_none_or(|answered| *answered > window.own)
            } else {
                window.others.is_none_or(|others| later.from > others)
            }
        })
    }

    /// Formats a file's history.
    pub fn told(&self, file: u64) -> String {
        let Some((_, known)) = self.files.get(&file) else { return "never there".into() };
        self.all_told(known, |FileState { size, mode, nlink, bytes, .. }| {
            let begins = bytes.iter().take(4).collect::<Vec<_>>();
            format!("{size} {mode:o} {nlink} {begins:?}")
        })
    }

    /// Formats a name's history.
    pub fn name_told(&self, dir: u64, name: &[u8]) -> String {
        let known = self.names.get(&(dir, name.to_vec())).map_or(&[][..], Vec::as_slice);
        self.all_told(known, |leads_to| format!("{leads_to:?}"))
    }

    fn all_told<T>(&self, known: &[Since<T>], tell: impl Fn(&T) -> String) -> String {
        let shown = known.iter().map(|Since { from, by, what }| {
            let answered = self.answered.get(&by.request).copied().unwrap_or_default();
            format!("{from} by {by:?} (answered {answered}): {}", tell(what))
        });
        shown.collect::<Vec<_>>().join("\n    ")
    }

    /// Returns the current paths of regular files in the root and its directories.
    pub fn paths(&self) -> Vec<(Vec<u8>, Vec<u8>, u64)> {
        let led = |dir: u64| {
            let of_dir = self.names.iter().filter(move |((of, _), _)| *of == dir);
            of_dir.filter_map(|((_, name), known)| Some((name.clone(), known.last()?.what?)))
        };
        let top = led(ROOT).map(|(name, file)| (Vec::new(), name, file));
        let below =
            led(ROOT).flat_map(|(dir, id)| led(id).map(move |(name, file)| (dir.clone(), name, file)));
        top.chain(below).collect()
    }
}

fn state_of(clock: Clock, attr: &Attr) -> FileState {
    let mut seen = *attr;
    if clock != Clock::Same {
        clock.stamp(&mut seen);
    }
    FileState {
        size: attr.size,
        mode: attr.mode.bits(),
        nlink: attr.nlink,
        times: (seen.mtime, seen.ctime),
        bytes: Arc::default(),
    }
}
