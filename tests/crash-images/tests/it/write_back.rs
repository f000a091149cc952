//! Data that write-back acknowledged as stable, after a power loss.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use tombolo_back_local_dir::{LocalDir, Options as DirOptions};
use tombolo_core::fs::{
    Cookie, Create, DirBudget, DirPage, Export, File, Mode, Name, NewMode, NodeId, OpenFlags, SetAttr,
    SyncScope, Write,
};
use tombolo_core::{ClientId, Ctx, KeyProperties, RequestKey, Result, Stability};
use tombolo_crash_images::{each_image, mark, record, recorded};
use tombolo_layer_cache::store::StoreOptions;
use tombolo_layer_cache::{Contract, Options};
use tombolo_layer_write_back::{Options as WriteBackOptions, WriteBackExport};
use tombolo_mem::Source;

use crate::world::{Cached, Origin, Session, attach, name};

/// An operation of the workload; it writes its number as bytes.
#[derive(Clone, Debug)]
enum Action {
    Create(String),
    Write(String, usize, usize),
    Resize(String, usize),
    Rename(String, String),
    Link(String, String),
    Unlink(String),
    /// fsync of a file: everything before is stable.
    Sync(String),
}

/// Expected state of the tree: names and their files.
#[derive(Clone, Debug, Default)]
struct State {
    names: BTreeMap<String, usize>,
    files: HashMap<usize, Vec<u8>>,
}

const ACTIONS: usize = 200;
const OLD_FILES: usize = 4;
const OLD_BYTES: usize = 50_000;
/// Unit of comparison: most pieces are wholly of one version.
const PIECE_BYTES: usize = 512;

fn old(n: usize) -> (String, Vec<u8>) {
    (format!("old-{n}"), vec![251 + n as u8; OLD_BYTES])
}

impl State {
    fn first() -> Self {
        let mut state = Self::default();
        for n in 0..OLD_FILES {
            let (name, bytes) = old(n);
            state.names.insert(name, 1000 + n);
            state.files.insert(1000 + n, bytes);
        }
        state
    }

    fn data(&mut self, name: &str) -> &mut Vec<u8> {
        self.files.get_mut(&self.names[name]).expect("a file")
    }

    fn after(mut self, number: usize, action: &Action) -> Self {
        match action {
            Action::Create(name) => {
                self.names.insert(name.clone(), number);
                self.files.insert(number, Vec::new());
            }
            Action::Write(name, at, len) => {
                let (data, end) = (self.data(name), at + len);
                data.resize(data.len().max(end), 0);
                data[*at..end].fill(number as u8);
            }
            Action::Resize(name, len) => self.data(name).resize(*len, 0),
            Action::Rename(from, to) => {
                let file = self.names.remove(from).expect("a name");
                self.names.insert(to.clone(), file);
            }
            Action::Link(from, to) => {
                self.names.insert(to.clone(), self.names[from]);
            }
            Action::Unlink(name) => drop(self.names.remove(name)),
            Action::Sync(_) => {}
        }
        self
    }
}

/// Returns the workload, and the state before each action and at the end; always the same.
fn history() -> (Vec<(Action, bool)>, Vec<State>) {
    let (mut random, mut states, mut actions) = (Rng::with_seed(5), vec![State::first()], Vec::new());
    for number in 1..=ACTIONS {
        let state = states.last().expect("a state");
        let names: Vec<_> = state.names.keys().cloned().collect();
        let any = names[random.usize(..names.len())].clone();
        let all = ('a'..='h').map(|name| format!("{}{name}", if name < 'e' { "" } else { "dir/" }));
        let free: Vec<_> = all.filter(|name| !state.names.contains_key(name)).collect();
        let free = (!free.is_empty()).then(|| free[random.usize(..free.len().max(1))].clone());
        let action = match (random.u8(..16), free) {
            (0..=2, Some(free)) => Action::Create(free),
            (3, Some(free)) => Action::Link(any, free),
            (4, Some(free)) => Action::Rename(any, free),
            (5, _) => {
                let other = names[random.usize(..names.len())].clone();
                // Two names of one file: a rename has no effect.
                match state.names[&other] == state.names[&any] {
                    true => Action::Sync(any),
                    false => Action::Rename(any, other),
                }
            }
            (6, _) if names.len() > 4 => Action::Unlink(any),
            (7, _) => Action::Resize(any, random.usize(..60_000)),
            (8, _) => Action::Sync(any),
            (9..=10, _) => Action::Write(any, random.usize(..40_000), random.usize(17_000..50_000)),
            _ => Action::Write(any, random.usize(..40_000), random.usize(1..9000)),
        };
        let state = state.clone().after(number, &action);
        states.push(state);
        actions.push((action, random.bool()));
    }
    (actions, states)
}

struct Proxy {
    session: Session,
    _write_back: WriteBackExport,
    _cached: Cached,
    _origin: Origin,
}

fn proxy(area: &Path, dir: &Path) -> Proxy {
    let export = LocalDir::open(&area.join("origin"), DirOptions::default()).expect("the origin");
    let origin = Origin::of(Arc::new(export));
    let options = Options { contract: Contract::Exclusive, ..Options::default() };
    let cached = origin.cached_with(&dir.join("cache"), options, StoreOptions::default());
    // Images do not include the origin, so nothing is sent to it.
    let never = Duration::from_secs(1 << 20);
    let options = WriteBackOptions { idle: never, delay_max: never, ..WriteBackOptions::default() };
    let write_back = tombolo_layer_write_back::over(&cached.cache, &dir.join("write-back"), options);
    let write_back = write_back.expect("write-back");
    Proxy {
        session: attach(&write_back as &dyn Export),
        _write_back: write_back,
        _cached: cached,
        _origin: origin,
    }
}

fn perform(session: &Session, number: usize, action: &Action, is_keyed: bool) {
    let key =
        RequestKey { client: ClientId::from(1), key: number as u128, properties: KeyProperties::empty() };
    let cx = &Ctx { key: is_keyed.then_some(key), ..session.cx.clone() };
    let fs = &session.fs;
    let node = |path: &str| find(session, path).expect("there");
    let open = |path: &str| open(session, path, OpenFlags::READ | OpenFlags::WRITE);
    match action {
        Action::Create(new) => {
            let mode = NewMode::settled(Mode::new(0o644));
            let create = Create { mode, flags: OpenFlags::WRITE, ..Create::default() };
            let (dir, name) = place(session, new);
            let created = fs.create(cx, dir, name, &create).wait().expect("create");
            fs.release(cx, File { node: created.entry.node, open: created.open });
        }
        Action::Write(text, at, len) => {
            let stability = if is_keyed { Stability::FileSync } else { Stability::Unstable };
            let (file, how) = (open(text), Write { offset: *at as u64, stability, ..Write::default() });
            let source = Source::from(vec![number as u8; *len]);
            assert_eq!(fs.write(cx, file, &how, source).wait().expect("write").count, *len);
            fs.release(cx, file);
        }
        Action::Resize(text, len) => {
            let set = SetAttr { size: Some(*len as u64), ..SetAttr::default() };
            fs.setattr(cx, node(text), None, &set).wait().expect("setattr");
        }
        Action::Rename(from, to) => {
            let (from, to) = (place(session, from), place(session, to));
            fs.rename(cx, from.0, from.1, to.0, to.1, Default::default()).wait().expect("rename");
        }
        Action::Link(from, to) => {
            let (dir, name) = place(session, to);
            fs.link(cx, node(from), dir, name).wait().expect("link");
        }
        Action::Unlink(path) => {
            let (dir, name) = place(session, path);
            fs.unlink(cx, dir, name).wait().expect("unlink");
        }
        Action::Sync(text) => {
            let file = open(text);
            fs.fsync(cx, file, SyncScope::All).wait().expect("fsync");
            fs.release(cx, file);
        }
    }
}

fn find(session: &Session, path: &str) -> Result<NodeId> {
    let (dir, name) = place(session, path);
    Ok(session.fs.lookup(&session.cx, dir, name).wait()?.node)
}

/// Returns the directory of a path, and its last name.
fn place<'a>(session: &Session, path: &'a str) -> (NodeId, Name<'a>) {
    match path.split_once('/') {
        Some((dir, last)) => (find(session, dir).expect("there"), name(last)),
        None => (NodeId::ROOT, name(path)),
    }
}

fn open(session: &Session, path: &str, flags: OpenFlags) -> File {
    let node = if path.is_empty() { NodeId::ROOT } else { find(session, path).expect("there") };
    let opened =
        session.fs.open(&session.cx, node, flags).wait().unwrap_or_else(|error| panic!("{path}: {error}"));
    File { node, open: opened.open }
}

/// Performs the workload in two lives; the second ends abruptly.
fn work(dir: &Path) {
    let area = dir.parent().expect("an area");
    let (actions, states) = history();
    for (life, is_last) in [(0..ACTIONS / 2, false), (ACTIONS / 2..ACTIONS, true)] {
        let proxy = proxy(area, dir);
        if !is_last {
            let (session, mode) = (&proxy.session, NewMode::settled(Mode::new(0o755)));
            session.fs.mkdir(&session.cx, NodeId::ROOT, name("dir"), mode).wait().expect("mkdir");
        }
        for number in life {
            let (action, is_keyed) = &actions[number];
            let number = number + 1;
            mark(&format!("begin {number}"));
            perform(&proxy.session, number, action, *is_keyed);
            if *is_keyed || matches!(action, Action::Sync(_)) {
                mark(&format!("stable {number}"));
                if let Action::Create(text) = action {
                    let node = find(&proxy.session, text).expect("there");
                    mark(&format!("node-{} {}", states[number].names[text], node.0));
                }
            }
        }
        match is_last {
            true => std::mem::forget(proxy),
            false => drop(proxy),
        }
    }
}

fn listed(session: &Session, dir: &str) -> BTreeMap<String, Vec<u8>> {
    let file = open(session, dir, OpenFlags::READ | OpenFlags::DIRECTORY);
    let page = DirPage::new(DirBudget { size_bytes: 1 << 16, entry_bytes: 24, align: 8, plus: false });
    let page = session.fs.readdir(&session.cx, file, Cookie::START, page).wait().expect("list");
    assert!(page.is_end());
    session.fs.release(&session.cx, file);
    let mut found = BTreeMap::new();
    for entry in page.iter().filter(|entry| ![&b"."[..], b".."].contains(&entry.name)) {
        let name = String::from_utf8(entry.name.to_vec()).expect("a name");
        if name == "dir" {
            found.extend(listed(session, "dir"));
            continue;
        }
        let path = if dir.is_empty() { name } else { format!("{dir}/{name}") };
        let file = open(session, &path, OpenFlags::READ);
        let bytes = session.read(file, 0, 1 << 20).unwrap_or_else(|error| panic!("{path}: {error}"));
        session.fs.release(&session.cx, file);
        found.insert(path, bytes);
    }
    found
}

/// Describes why a tree is none of the states `all`: it must have the names and sizes of the first, and each
/// byte of that or a later one.
fn difference(found: &BTreeMap<String, Vec<u8>>, all: &[State]) -> Option<String> {
    let state = &all[0];
    let wanted: Vec<_> = state.names.iter().map(|(name, file)| (name, state.files[file].len())).collect();
    let names: Vec<_> = found.iter().map(|(name, bytes)| (name, bytes.len())).collect();
    if wanted != names {
        return Some(format!("{names:?} and not {wanted:?}"));
    }
    for (name, bytes) in found {
        let file = state.names[name];
        let versions: Vec<_> = all.iter().filter_map(|state| state.files.get(&file)).collect();
        for (from, piece) in (0..).step_by(PIECE_BYTES).zip(bytes.chunks(PIECE_BYTES)) {
            if versions.iter().any(|version| version.get(from..from + piece.len()) == Some(piece)) {
                continue;
            }
            for (at, byte) in (from..).zip(piece) {
                if versions.iter().all(|version| version.get(at) != Some(byte)) {
                    return Some(format!("{name} has {byte} at {at}, and not {}", state.files[&file][at]));
                }
            }
        }
    }
    None
}

#[test]
fn stable_write_back_data_survive_power_loss() {
    if let Some(dir) = recorded() {
        return work(&dir);
    }
    let area = tempfile::tempdir().expect("a directory");
    fs::create_dir(area.path().join("origin")).expect("mkdir");
    for (name, bytes) in (0..OLD_FILES).map(old) {
        fs::write(area.path().join("origin").join(name), bytes).expect("write");
    }
    let log = record(&area.path().join("dir"));
    let (_, states) = history();
    each_image(&log, |dir, _, marks| {
        let numbers = |what: &str| {
            let of = marks.iter().filter_map(|mark| mark.split_once(' ')).filter(|(kind, _)| *kind == what);
            of.map(|(_, number)| number.parse::<usize>().expect("a number")).max().unwrap_or(0)
        };
        let (stable, begun) = (numbers("stable"), numbers("begin"));
        for again in [false, true] {
            let proxy = proxy(area.path(), dir);
            let found = listed(&proxy.session, "");
            let differences: Vec<_> =
                (stable..=begun).map(|number| difference(&found, &states[number..=begun])).collect();
            let fits = differences.iter().position(Option::is_none);
            assert!(fits.is_some(), "again: {again}; stable: {stable}, begun: {begun}: {differences:#?}");
            for (file, node) in marks.iter().filter_map(|mark| mark.strip_prefix("node-")?.split_once(' ')) {
                let file: usize = file.parse().expect("a number");
                let state = &states[stable + fits.unwrap_or(0)];
                for (name, _) in state.names.iter().filter(|(_, id)| **id == file) {
                    assert_eq!(find(&proxy.session, name).expect("there").0.to_string(), node, "{name}");
                }
            }
        }
    });
}

/// Number and size of small writes, which go to the journal itself; together more than its 8 MiB.
const SMALL_WRITES: (usize, usize) = (520, 16 << 10);

#[test]
fn data_beyond_journal_capacity_survive_power_loss() {
    let (count, len) = SMALL_WRITES;
    if let Some(dir) = recorded() {
        let proxy = proxy(dir.parent().expect("an area"), &dir);
        let name = || "large".to_owned();
        perform(&proxy.session, 1, &Action::Create(name()), false);
        for number in 0..count {
            perform(&proxy.session, number, &Action::Write(name(), number * len, len), false);
        }
        perform(&proxy.session, 1, &Action::Sync(name()), false);
        return std::mem::forget(proxy);
    }
    let area = tempfile::tempdir().expect("a directory");
    fs::create_dir(area.path().join("origin")).expect("mkdir");
    let log = record(&area.path().join("dir"));
    let left = area.path().join("left");
    log.image(log.end()).write_to(&left).expect("an image");
    let proxy = proxy(area.path(), &left);
    let file = open(&proxy.session, "large", OpenFlags::READ);
    for number in 0..count {
        let bytes = proxy.session.read(file, (number * len) as u64, len).expect("read");
        assert!(bytes == vec![number as u8; len], "write {number}");
    }
}
