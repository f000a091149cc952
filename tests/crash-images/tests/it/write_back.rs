//! Data that write-back acknowledged as stable, after a power loss.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use tombolo_back_local_dir::{LocalDir, Options as DirOptions};
use tombolo_core::fs::{SyncScope, Write};
use tombolo_core::{ClientId, Ctx, KeyProperties, RequestKey, Stability};
use tombolo_crash_images::{each_image, mark, record, recorded};
use tombolo_layer_cache::store::StoreOptions;
use tombolo_layer_cache::{Contract, Options};
use tombolo_layer_write_back::{Options as WriteBackOptions, WriteBackExport};
use tombolo_test_support::{Session, plain};

use crate::world::{Cached, Origin};

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
    Proxy { session: Session::attach(&write_back), _write_back: write_back, _cached: cached, _origin: origin }
}

fn perform(session: &Session, number: usize, action: &Action, is_keyed: bool) {
    let key =
        RequestKey { client: ClientId::from(1), key: number as u128, properties: KeyProperties::empty() };
    let session = &session.with(Ctx { key: is_keyed.then_some(key), ..session.cx.clone() });
    match action {
        Action::Create(new) => session.release(session.file_as(new, &plain()).expect("create")),
        Action::Write(text, at, len) => {
            let stability = if is_keyed { Stability::FileSync } else { Stability::Unstable };
            let how = Write { offset: *at as u64, stability, ..Write::default() };
            let file = session.writer(text);
            let written = session.write_as(file, &how, &vec![number as u8; *len]).expect("write");
            assert_eq!(written.count, *len);
            session.release(file);
        }
        Action::Resize(text, len) => {
            session.truncate(text, *len as u64).expect("setattr");
        }
        Action::Rename(from, to) => {
            session.rename(from, to, Default::default()).expect("rename");
        }
        Action::Link(from, to) => {
            session.link(from, to).expect("link");
        }
        Action::Unlink(path) => {
            session.unlink(path).expect("unlink");
        }
        Action::Sync(text) => {
            let file = session.writer(text);
            session.fs.fsync(&session.cx, file, SyncScope::All).wait().expect("fsync");
            session.release(file);
        }
    }
}

/// Performs the workload in two lives; the second ends abruptly.
fn work(dir: &Path) {
    let area = dir.parent().expect("an area");
    let (actions, states) = history();
    for (life, is_last) in [(0..ACTIONS / 2, false), (ACTIONS / 2..ACTIONS, true)] {
        let proxy = proxy(area, dir);
        if !is_last {
            proxy.session.dir("dir");
        }
        for number in life {
            let (action, is_keyed) = &actions[number];
            let number = number + 1;
            mark(&format!("begin {number}"));
            perform(&proxy.session, number, action, *is_keyed);
            if *is_keyed || matches!(action, Action::Sync(_)) {
                mark(&format!("stable {number}"));
                if let Action::Create(text) = action {
                    let node = proxy.session.node(text).expect("there");
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
    let mut found = BTreeMap::new();
    for name in session.names(dir) {
        if name == "dir" {
            found.extend(listed(session, "dir"));
            continue;
        }
        let path = if dir.is_empty() { name } else { format!("{dir}/{name}") };
        let bytes = session.get(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
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
                    assert_eq!(proxy.session.node(name).expect("there").0.to_string(), node, "{name}");
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
    let file = proxy.session.reader("large");
    for number in 0..count {
        let bytes = proxy.session.read(file, (number * len) as u64, len).expect("read");
        assert!(bytes == vec![number as u8; len], "write {number}");
    }
}
