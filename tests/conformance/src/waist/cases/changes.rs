//! Notices of changes by others.

use std::collections::BTreeMap;

use fastrand::Rng;
use tombolo_core::Error;
use tombolo_core::fs::{
    Attr, Changes, Create, Exclusive, NodeId, Notice, OpenFlags, RenameFlags, SetAttr, SetTime, Write,
};
use tombolo_test_support::{name, plain};

use super::cases;
use crate::is_long_run;
use crate::waist::World;

cases! { "changes":
    the_first_answer_is_that_nothing_is_to_be_believed needs CHANGES,
    changes_by_another_session_are_told needs CHANGES,
    a_change_of_data_is_told_with_its_range needs CHANGES,
    a_session_is_not_told_of_its_own_changes needs CHANGES,
    what_a_session_does_not_know_it_is_not_told_of needs CHANGES,
    whatever_was_not_told_is_as_it_was needs CHANGES,
}

/// A session that receives change notices.
struct Watcher {
    world: World,
    since: u64,
    /// Nodes that [`Watcher::settled`] changes in turn: the other session's number and its own.
    marks: Vec<(NodeId, NodeId)>,
    turn: usize,
}

/// Enough that notices of an earlier turn cannot be taken for a later one's.
const MARKS: usize = 8;

impl Watcher {
    /// Starts watching in another session than `w`.
    fn beside(w: &World) -> Self {
        let names: Vec<_> = (0..MARKS).map(|mark| format!("mark-{mark}")).collect();
        let theirs: Vec<_> = names.iter().map(|name| w.file_with(name, b"")).collect();
        let mut watcher = Self { world: w.other_session(), since: 0, marks: Vec::new(), turn: 0 };
        assert_eq!(watcher.next(), [Notice::Everything]);
        let own = names.iter().map(|name| watcher.known(name)).collect::<Vec<_>>();
        watcher.marks = theirs.into_iter().zip(own).collect();
        watcher
    }

    fn changes(&self) -> &dyn Changes {
        self.world.fs.changes().expect("word of changes")
    }

    fn next(&mut self) -> Vec<Notice> {
        let notices = self.changes().next(&self.world.cx, self.since, 4096).wait().expect("notices");
        self.since = notices.last;
        notices.list
    }

    fn known(&self, text: &str) -> NodeId {
        self.world.lookup(text).expect("lookup").node
    }

    /// Changes the next mark by `w`; returns the notice to expect.
    fn mark(&mut self, w: &World) -> Notice {
        self.turn += 1;
        let (theirs, own) = self.marks[self.turn % MARKS];
        // Over a link, a server sends notices only about nodes that the session has queried.
        self.world.attr(own);
        w.chmod(theirs, 0o600 + (self.turn / MARKS % 8) as u32).expect("chmod");
        Notice::Attributes(own)
    }

    /// Returns the notices of all changes by `w` so far: notices are ordered, and the mark's is the last.
    fn settled(&mut self, w: &World) -> Vec<Notice> {
        let mut mark = self.mark(w);
        let mut all = Vec::new();
        loop {
            let told = self.next();
            let is_last = told.contains(&mark);
            // After the loss of a link, this notice may stand for the mark's or for earlier ones.
            let is_lost = told.contains(&Notice::Everything);
            all.extend(told);
            if is_lost {
                mark = self.mark(w);
            } else if is_last {
                all.retain(|notice| !self.marks.iter().any(|(_, own)| *notice == Notice::Attributes(*own)));
                return all;
            }
        }
    }
}

fn the_first_answer_is_that_nothing_is_to_be_believed(w: &World) {
    let mut watcher = Watcher::beside(w);
    let mark = watcher.mark(w);
    assert_eq!(watcher.next(), std::slice::from_ref(&mark));
    // Unacknowledged notices are repeated, acknowledged ones forgotten.
    watcher.since -= 1;
    assert_eq!(watcher.next(), [mark]);
    watcher.mark(w);
    watcher.next();
    watcher.since -= 2;
    assert_eq!(watcher.next(), [Notice::Everything]);
}

fn changes_by_another_session_are_told(w: &World) {
    let file = w.file_with("file", b"data");
    w.dir("sub");
    let mut watcher = Watcher::beside(w);
    let (known, sub, dir) = (watcher.known("file"), watcher.known("sub"), watcher.world.dir);
    let named = |dir: NodeId, text: &str| Notice::Name { dir, name: name(text).to_owned() };
    let gone = |node: NodeId| Notice::Gone { node, name: None };
    let told = |watcher: &mut Watcher, what: &str, expected: &[Notice]| {
        let mut told = watcher.settled(w);
        for notice in &mut told {
            // Not every file system knows the name.
            if let Notice::Gone { name, .. } = notice {
                *name = None;
            }
        }
        for notice in expected {
            assert!(told.contains(notice), "{what}: {notice:?} is not among {told:?}");
        }
    };
    w.chmod(file, 0o600).expect("chmod");
    told(&mut watcher, "chmod", &[Notice::Attributes(known)]);
    w.link(file, "other").expect("link");
    let parent = Notice::Attributes(dir);
    told(&mut watcher, "link", &[named(dir, "other"), parent.clone(), Notice::Attributes(known)]);
    w.unlink("other").expect("unlink");
    told(&mut watcher, "unlink", &[named(dir, "other"), parent.clone(), Notice::Attributes(known)]);
    w.rename("file", "moved", RenameFlags::empty()).expect("rename");
    told(&mut watcher, "rename", &[named(dir, "file"), named(dir, "moved"), Notice::Attributes(known)]);
    w.unlink("moved").expect("unlink");
    told(&mut watcher, "last unlink", &[named(dir, "moved"), parent.clone(), gone(known)]);
    w.rmdir("sub").expect("rmdir");
    told(&mut watcher, "rmdir", &[named(dir, "sub"), parent.clone(), gone(sub)]);
    w.dir("made");
    told(&mut watcher, "mkdir", &[named(dir, "made"), parent.clone()]);
    w.symlink("link", b"target").expect("symlink");
    told(&mut watcher, "symlink", &[named(dir, "link"), parent.clone()]);
    w.release(w.file("created"));
    told(&mut watcher, "create", &[named(dir, "created"), parent]);
}

fn a_change_of_data_is_told_with_its_range(w: &World) {
    let file = w.file("file");
    w.write_all(file, 0, &[1; 10_000]);
    let mut watcher = Watcher::beside(w);
    let known = watcher.known("file");
    let covers = |told: Vec<Notice>, from: u64, to: u64| {
        let covers = |notice: &Notice| matches!(notice, Notice::Data { node, start, last } if *node == known && *start <= from && *last >= to);
        assert!(told.iter().any(covers), "{from} to {to}: {told:?}");
    };
    w.write_all(file, 5000, &[2; 100]);
    covers(watcher.settled(w), 5000, 5099);
    w.truncate(file.node, 7000).expect("truncate");
    covers(watcher.settled(w), 7000, 9999);
    w.release(w.open(file.node, OpenFlags::WRITE | OpenFlags::TRUNCATE).expect("open"));
    covers(watcher.settled(w), 0, 6999);
    w.release(file);
}

fn a_session_is_not_told_of_its_own_changes(w: &World) {
    let mut watcher = Watcher::beside(w);
    let own = &watcher.world;
    let node = own.file_with("own", b"data");
    own.chmod(node, 0o600).expect("chmod");
    own.rename("own", "renamed", RenameFlags::empty()).expect("rename");
    own.unlink("renamed").expect("unlink");
    assert_eq!(watcher.settled(w), []);
}

fn what_a_session_does_not_know_it_is_not_told_of(w: &World) {
    let (file, sub) = (w.file_with("file", b"data"), w.dir("sub"));
    let mut watcher = Watcher::beside(w);
    w.chmod(file, 0o600).expect("chmod");
    w.release(w.file((sub, "inside")));
    assert_eq!(watcher.settled(w), []);
    let known = watcher.known("file");
    w.chmod(file, 0o644).expect("chmod");
    assert_eq!(watcher.settled(w), [Notice::Attributes(known)]);
    watcher.world.forget(known);
    w.chmod(file, 0o600).expect("chmod");
    assert_eq!(watcher.settled(w), []);
}

/// Cached state of a session, valid until a notice.
#[derive(Default)]
struct Believed {
    /// Targets by directory and name; `None` if the name does not exist.
    names: BTreeMap<(NodeId, String), Option<NodeId>>,
    attributes: BTreeMap<NodeId, Attr>,
    data: BTreeMap<NodeId, Vec<u8>>,
}

pub(super) const NAMES: [&str; 4] = ["a", "b", "c", "d"];

impl Believed {
    /// Reads everything that is not cached.
    fn look(&mut self, w: &World, dirs: &[NodeId]) {
        for &dir in dirs {
            for text in NAMES {
                if self.names.contains_key(&(dir, text.into())) {
                    continue;
                }
                let found = match w.lookup((dir, text)) {
                    Ok(entry) => Some(entry.node),
                    // The directory itself may have been removed.
                    Err(Error::NotFound | Error::Stale) => None,
                    Err(error) => panic!("lookup: {error:?}"),
                };
                self.names.insert((dir, text.into()), found);
            }
        }
        let nodes: Vec<_> = self.names.values().flatten().chain(dirs).copied().collect();
        for node in nodes {
            if let Some(data) = data(w, node) {
                self.data.entry(node).or_insert(data);
            }
            if let Ok(attr) = w.fs.getattr(&w.cx, node, None).wait() {
                self.attributes.entry(node).or_insert(attr);
            }
        }
    }

    fn forget(&mut self, notice: &Notice) {
        match notice {
            Notice::Attributes(node) => drop(self.attributes.remove(node)),
            Notice::Data { node, .. } => {
                self.attributes.remove(node);
                self.data.remove(node);
            }
            Notice::Name { dir, name } => {
                let text = String::from_utf8_lossy(name.as_name().as_bytes()).into_owned();
                self.names.remove(&(*dir, text));
            }
            Notice::Gone { node, .. } => {
                self.attributes.remove(node);
                self.data.remove(node);
                self.names.retain(|(dir, _), _| dir != node);
            }
            Notice::Everything => *self = Self::default(),
        }
    }

    fn check(&self, w: &World, step: &str) {
        for ((dir, text), believed) in &self.names {
            let found = w.lookup((*dir, text)).map(|entry| entry.node).ok();
            assert_eq!(found, *believed, "{step}: {text} in {dir:?} has changed, and nothing was told");
        }
        for (node, believed) in &self.attributes {
            if let Ok(attr) = w.fs.getattr(&w.cx, *node, None).wait() {
                // A host frees preallocated blocks without a notice.
                let attr = Attr { blocks: believed.blocks, ..attr };
                assert_eq!(attr, *believed, "{step}: {node:?} has changed, and nothing was told");
            }
        }
        for (node, believed) in &self.data {
            if let Some(data) = data(w, *node) {
                assert!(data == *believed, "{step}: the data of {node:?} have changed, and nothing was told");
            }
        }
    }
}

/// Reads a regular file without changing its access time.
pub(super) fn data(w: &World, node: NodeId) -> Option<Vec<u8>> {
    let file = w.open(node, OpenFlags::READ | OpenFlags::NO_ACCESS_TIME).ok()?;
    let data = w.read_eof(file, 0, 1 << 16).ok().map(|(bytes, _)| bytes);
    w.release(file);
    data
}

/// Tries a random change.
pub(super) fn change(w: &World, dirs: &[NodeId], random: &mut Rng) -> String {
    let mut place = || (dirs[random.usize(..dirs.len())], NAMES[random.usize(..NAMES.len())]);
    let (at, to) = (place(), place());
    let what = random.u8(..16);
    let is_done = match what {
        0 => {
            let how = Create { exclusive: Exclusive::Yes, ..plain() };
            w.file_as(at, &how).map(|file| w.release(file)).is_ok()
        }
        1 => w.mkdir(at).is_ok(),
        2 => w.unlink(at).is_ok(),
        3 => w.rmdir(at).is_ok(),
        4 => w.rename(at, to, RenameFlags::empty()).is_ok(),
        5 => w.rename(at, to, RenameFlags::EXCHANGE).is_ok(),
        6 => w.link(at, to).is_ok(),
        7 => w.chmod(at, 0o600 + random.u32(..8)).is_ok(),
        8 => w.truncate(at, random.u64(..9000)).is_ok(),
        9 => w.setattr(at, SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() }).is_ok(),
        10..=12 => {
            let append = if what == 12 { OpenFlags::APPEND } else { OpenFlags::empty() };
            w.open(at, OpenFlags::WRITE | append).is_ok_and(|file| {
                let how = Write { offset: random.u64(..8000), ..Write::default() };
                let written = w.write_as(file, &how, &vec![random.u8(..); 1 + random.usize(..3000)]);
                w.release(file);
                written.is_ok()
            })
        }
        13 => w.open(at, OpenFlags::WRITE | OpenFlags::TRUNCATE).map(|file| w.release(file)).is_ok(),
        14 => w.get(at).is_ok(),
        _ => w.fs.xattrs().is_some() && w.set_xattr(at, "user.changes", &[random.u8(..)]).is_ok(),
    };
    format!("{what} on {} and {} ({})", at.1, to.1, if is_done { "done" } else { "refused" })
}

fn whatever_was_not_told_is_as_it_was(w: &World) {
    let subs: Vec<_> = ["x", "y"].map(|text| w.dir(text)).into();
    let dirs = [w.dir, subs[0], subs[1]];
    let mut watcher = Watcher::beside(w);
    let own_dirs = [watcher.world.dir, watcher.known("x"), watcher.known("y")];
    let mut random = Rng::with_seed(1);
    let mut believed = Believed::default();
    let steps = if is_long_run() { 400 } else { 100 };
    for step in 0..steps {
        believed.look(&watcher.world, &own_dirs);
        let done: Vec<_> = (0..1 + random.usize(..3)).map(|_| change(w, &dirs, &mut random)).collect();
        for notice in watcher.settled(w) {
            believed.forget(&notice);
        }
        believed.check(&watcher.world, &format!("step {step}, {done:?}"));
    }
}
