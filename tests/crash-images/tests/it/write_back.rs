//! Data that write-back acknowledged as stable, after a power loss.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use tombolo_back_local_dir::{LocalDir, Options as DirOptions};
use tombolo_core::fs::{SyncScope, Write};
use tombolo_core::{ClientId, Ctx, KeyProperties, RequestKey, Stability};
use tombolo_crash_images::{each_image, mark, record, recorded};
use tombolo_layer_cache::{Contract, Options};
use tombolo_layer_write_back::{Options as WriteBackOptions, WriteBackExport};
use tombolo_test_support::history::{Change, Loss, State, bytes, difference};
use tombolo_test_support::{Session, plain};

use crate::world::{Cached, Origin};

const ACTIONS: usize = 200;
const OLD_FILES: usize = 4;
const OLD_BYTES: usize = 50_000;
/// Lengths are stable with the names.
const LOSS: Loss = Loss { lengths: false, zeroes: false };

/// Returns the initial state.
fn old() -> State {
    let mut state = State::default();
    (0..OLD_FILES).for_each(|n| state.add(format!("old-{n}"), 1000 + n, OLD_BYTES));
    state
}

/// Returns the workload, with `true` for what is stable when it is answered, and the state before each action
/// and at the end; always the same.
fn history() -> (Vec<(Change, bool)>, Vec<State>) {
    let (mut random, mut states, mut actions) = (Rng::with_seed(5), vec![old()], Vec::new());
    for number in 1..=ACTIONS {
        let state: &State = &states[number - 1];
        let action = state.choose(&mut random, false, |_| true);
        states.push(state.after(number, &action));
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
    let cached = origin.cached_with(&dir.join("cache"), options);
    // Images do not include the origin, so nothing is sent to it.
    let never = Duration::from_secs(1 << 20);
    let options = WriteBackOptions { idle: never, delay_max: never, ..WriteBackOptions::default() };
    let write_back = tombolo_layer_write_back::over(&cached.cache, &dir.join("write-back"), options);
    let write_back = write_back.expect("write-back");
    Proxy { session: Session::attach(&write_back), _write_back: write_back, _cached: cached, _origin: origin }
}

fn perform(session: &Session, number: usize, action: &Change, is_keyed: bool) {
    let key =
        RequestKey { client: ClientId::from(1), key: number as u128, properties: KeyProperties::empty() };
    let session = &session.with(Ctx { key: is_keyed.then_some(key), ..session.cx.clone() });
    match action {
        Change::Create(new) => session.release(session.file_as(new, &plain()).expect("create")),
        Change::Write(text, at, len) => {
            let stability = if is_keyed { Stability::FileSync } else { Stability::Unstable };
            let how = Write { offset: *at as u64, stability, ..Write::default() };
            let file = session.writer(text);
            let written = session.write_as(file, &how, &bytes(number, *at, *len)).expect("write");
            assert_eq!(written.count, *len);
            session.release(file);
        }
        Change::Resize(text, len) => {
            session.truncate(text, *len as u64).expect("setattr");
        }
        Change::Rename(from, to) => {
            session.rename(from, to, Default::default()).expect("rename");
        }
        Change::Link(from, to) => {
            session.link(from, to).expect("link");
        }
        Change::Unlink(path) => {
            session.unlink(path).expect("unlink");
        }
        Change::Sync(text) => {
            let file = session.writer(text);
            session.fs.fsync(&session.cx, file, SyncScope::All).wait().expect("fsync");
            session.release(file);
        }
        Change::Put(..) => unreachable!("it is not part of the workload"),
    }
}

/// Performs the workload in two lives; the second ends abruptly.
fn work(dir: &Path) {
    let area = dir.parent().expect("an area");
    let (actions, states) = history();
    for (life, is_last) in [(0..ACTIONS / 2, false), (ACTIONS / 2..ACTIONS, true)] {
        let proxy = proxy(area, dir);
        if !is_last {
            proxy.session.dir("sub");
        }
        for number in life {
            let (action, is_keyed) = &actions[number];
            let number = number + 1;
            mark(&format!("begin {number}"));
            perform(&proxy.session, number, action, *is_keyed);
            if *is_keyed || matches!(action, Change::Sync(_)) {
                mark(&format!("stable {number}"));
                if let Change::Create(text) = action {
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
        if name == "sub" {
            found.extend(listed(session, "sub"));
            continue;
        }
        let path = if dir.is_empty() { name } else { format!("{dir}/{name}") };
        let bytes = session.get(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        found.insert(path, bytes);
    }
    found
}

#[test]
fn stable_write_back_data_survive_power_loss() {
    if let Some(dir) = recorded() {
        return work(&dir);
    }
    let area = tempfile::tempdir().expect("a directory");
    fs::create_dir(area.path().join("origin")).expect("mkdir");
    let old = old();
    for (name, file) in &old.names {
        fs::write(area.path().join("origin").join(name), &**old.files[file]).expect("write");
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
                (stable..=begun).map(|number| difference(&found, &states[number..=begun], LOSS)).collect();
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
        perform(&proxy.session, 1, &Change::Create(name()), false);
        for number in 0..count {
            perform(&proxy.session, number, &Change::Write(name(), number * len, len), false);
        }
        perform(&proxy.session, 1, &Change::Sync(name()), false);
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
        let found = proxy.session.read(file, (number * len) as u64, len).expect("read");
        assert!(found == bytes(number, number * len, len), "write {number}");
    }
}
