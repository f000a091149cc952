//! Equivalence of random operations with and without random duplicates.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tombolo_core::fs::{
    Cookie, DirBudget, DirPage, Exclusive, Export, File, FileSystem, NewMode, NodeId, OpenFlags, RenameFlags,
    SetAttr, Write,
};
use tombolo_core::{Ctx, Error};
use tombolo_layer_basic::delay;
use tombolo_layer_replies::Options;
use tombolo_mem::Source;

use tombolo_test_support::name;

use crate::fixture::{Bottom, Fixture, attach, fresh_key, keyed, plain};

/// Few names, so that operations interfere.
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

#[derive(Clone, Copy, Debug)]
enum Action {
    Mkdir(usize),
    Create(usize, bool),
    Symlink(usize),
    Link(usize, usize),
    Unlink(usize),
    Rmdir(usize),
    Rename(usize, usize),
    Append(usize),
    Cut(usize, u8),
}

/// A request: number of concurrent duplicates, and earlier requests repeated after it.
#[derive(Clone, Debug)]
struct Step {
    action: Action,
    at_once: usize,
    replays: Vec<prop::sample::Index>,
}

fn action() -> impl Strategy<Value = Action> {
    let name = 0..NAMES.len();
    prop_oneof![
        name.clone().prop_map(Action::Mkdir),
        (name.clone(), any::<bool>()).prop_map(|(at, exclusive)| Action::Create(at, exclusive)),
        name.clone().prop_map(Action::Symlink),
        (name.clone(), name.clone()).prop_map(|(from, to)| Action::Link(from, to)),
        name.clone().prop_map(Action::Unlink),
        name.clone().prop_map(Action::Rmdir),
        (name.clone(), name.clone()).prop_map(|(from, to)| Action::Rename(from, to)),
        name.clone().prop_map(Action::Append),
        (name, any::<u8>()).prop_map(|(at, size)| Action::Cut(at, size)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let replays = prop::collection::vec(any::<prop::sample::Index>(), 0..3);
    (action(), 1..4_usize, replays).prop_map(|(action, at_once, replays)| Step { action, at_once, replays })
}

/// Success, or the error.
type Came = std::result::Result<(), String>;

/// Looks up a node by name. The look-up is retained, as servers do.
fn node(fs: &dyn FileSystem, cx: &Ctx, at: usize) -> Option<NodeId> {
    fs.lookup(cx, NodeId::ROOT, name(NAMES[at])).wait().ok().map(|entry| entry.node)
}

/// The nodes addressed by a request; the same for all its duplicates.
#[derive(Clone, Copy)]
struct Target {
    node: Option<NodeId>,
    file: Option<File>,
}

fn target(fs: &dyn FileSystem, cx: &Ctx, action: Action) -> Target {
    let node = match action {
        Action::Link(at, _) | Action::Append(at) | Action::Cut(at, _) => node(fs, cx, at),
        _ => None,
    };
    let file = node.filter(|_| matches!(action, Action::Append(_))).and_then(|node| {
        let open = fs.open(cx, node, OpenFlags::WRITE | OpenFlags::APPEND).wait().ok()?.open;
        Some(File { node, open })
    });
    Target { node, file }
}

/// Begins a request; the result waits for it.
fn begin(fs: &dyn FileSystem, cx: &Ctx, action: Action, target: Target) -> Box<dyn FnOnce() -> Came + Send> {
    fn waiting<T: Send + 'static>(answer: tombolo_core::Answer<T>) -> Box<dyn FnOnce() -> Came + Send> {
        Box::new(move || answer.wait().map(drop).map_err(|error| error.to_string()))
    }
    let (root, mode) = (NodeId::ROOT, NewMode::default());
    let missing = || -> Box<dyn FnOnce() -> Came + Send> { Box::new(|| Err(Error::NotFound.to_string())) };
    match action {
        Action::Mkdir(at) => waiting(fs.mkdir(cx, root, name(NAMES[at]), mode)),
        Action::Create(at, exclusive) => {
            let exclusive = if exclusive { Exclusive::Yes } else { Exclusive::No };
            let how = tombolo_core::fs::Create { exclusive, ..plain() };
            waiting(fs.create(cx, root, name(NAMES[at]), &how))
        }
        Action::Symlink(at) => waiting(fs.symlink(cx, root, name(NAMES[at]), b"target")),
        Action::Link(_, to) => match target.node {
            Some(node) => waiting(fs.link(cx, node, root, name(NAMES[to]))),
            None => missing(),
        },
        Action::Unlink(at) => waiting(fs.unlink(cx, root, name(NAMES[at]))),
        Action::Rmdir(at) => waiting(fs.rmdir(cx, root, name(NAMES[at]))),
        Action::Rename(from, to) => {
            waiting(fs.rename(cx, root, name(NAMES[from]), root, name(NAMES[to]), RenameFlags::empty()))
        }
        Action::Append(_) => match target.file {
            Some(file) => waiting(fs.write(cx, file, &Write::default(), Source::from(vec![1; 7]))),
            None => missing(),
        },
        Action::Cut(_, size) => match target.node {
            Some(node) => {
                let set = SetAttr { size: Some(u64::from(size)), ..SetAttr::default() };
                waiting(fs.setattr(cx, node, None, &set))
            }
            None => missing(),
        },
    }
}

/// Returns `true` if a repeated reply may be `Stale`, because it names a node.
fn names_a_node(action: Action) -> bool {
    matches!(
        action,
        Action::Mkdir(_)
            | Action::Create(..)
            | Action::Symlink(_)
            | Action::Link(..)
            | Action::Cut(..)
            | Action::Append(_)
    )
}

/// Lists all names with type, size and number of links.
fn listing(fs: &dyn FileSystem, cx: &Ctx) -> Vec<String> {
    let open = fs.open(cx, NodeId::ROOT, OpenFlags::READ | OpenFlags::DIRECTORY).wait().unwrap().open;
    let file = File { node: NodeId::ROOT, open };
    let budget = DirBudget { size_bytes: 1 << 16, entry_bytes: 24, align: 8, plus: true };
    let page = fs.readdir(cx, file, Cookie::START, DirPage::new(budget)).wait().unwrap();
    assert!(page.is_end());
    let entries = page.iter().filter_map(|entry| Some((entry.name.to_vec(), entry.entry?.attr)));
    let mut lines: Vec<_> = entries
        .map(|(name, attr)| {
            format!("{} {:?} {} {}", name.escape_ascii(), attr.file_type, attr.size, attr.nlink)
        })
        .collect();
    lines.sort();
    lines
}

fn check(bottom: Bottom, time: Duration, steps: &[Step]) {
    let fixture = Fixture::with(bottom, &Options::default(), |export| match time.is_zero() {
        true => export,
        false => Arc::new(delay::over(export, time).expect("a timer")) as Arc<dyn Export>,
    });
    let (reference, _scratch) = bottom.export();
    let (plain_fs, plain_cx) = attach(&*reference);
    let mut sent = Vec::new();
    for step in steps {
        let cx = keyed(&fixture.cx, fresh_key());
        let targeted = target(&*fixture.fs, &fixture.cx, step.action);
        let begun: Vec<_> =
            (0..step.at_once).map(|_| begin(&*fixture.fs, &cx, step.action, targeted)).collect();
        let threads: Vec<_> = begun.into_iter().map(std::thread::spawn).collect();
        let came: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
        let expected =
            begin(&*plain_fs, &plain_cx, step.action, target(&*plain_fs, &plain_cx, step.action))();
        came.iter().for_each(|came| assert_eq!(*came, expected, "{step:?}"));
        sent.push((step.action, cx, targeted, expected));
        for replay in &step.replays {
            let (action, cx, targeted, expected) = replay.get(&sent);
            let again = begin(&*fixture.fs, cx, *action, *targeted)();
            let stale = expected.is_ok() && names_a_node(*action) && again == Err(Error::Stale.to_string());
            assert!(again == *expected || stale, "{action:?} came to {expected:?}, and again to {again:?}");
        }
        assert_eq!(listing(&*fixture.fs, &fixture.cx), listing(&*plain_fs, &plain_cx), "after {step:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn duplicates_change_nothing_in_memory(steps in prop::collection::vec(step(), 1..40)) {
        check(Bottom::Memory, Duration::ZERO, &steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn duplicates_change_nothing_where_answers_come_later(steps in prop::collection::vec(step(), 1..20)) {
        check(Bottom::Memory, Duration::from_micros(200), &steps);
    }

    #[test]
    fn duplicates_change_nothing_in_a_directory(steps in prop::collection::vec(step(), 1..40)) {
        check(Bottom::Tmpfs, Duration::ZERO, &steps);
    }
}
