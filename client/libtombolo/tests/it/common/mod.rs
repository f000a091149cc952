//! Trees to copy from and to, and their contents.
#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use libtombolo::copy::{Copier, Event, Failure, From, Observer, Options, Tally, To};
use libtombolo::{Last, Node, Tree, User, block_on};
use tombolo_back_local_dir::{LocalDir, Options as DirOptions};
use tombolo_back_memory::{Memory, Options as MemoryOptions};
use tombolo_core::Identity;
use tombolo_core::fs::{Attr, Export, FileType, Mode, Name, NameBuf, OpenFlags};
use tombolo_layer_basic::fault::{self, Plan, Rule};

pub fn local(path: &Path) -> Tree {
    attach(&LocalDir::open(path, DirOptions::default()).expect("serve"), "local")
}

pub fn memory() -> Memory {
    Memory::new(MemoryOptions::default())
}

pub fn attach(export: &dyn Export, realm: &str) -> Tree {
    let user = User { identity: Identity::ROOT, umask: Mode::new(0o022), realm: realm.into() };
    Tree::attach(export, user).expect("attach")
}

/// Returns an export that follows these rules for its faults.
pub fn faulty(export: Arc<dyn Export>, rules: Vec<Rule>) -> Arc<dyn Export> {
    Arc::new(fault::over(export, Plan { rules, seed: 1 }))
}

pub fn name(text: &str) -> NameBuf {
    Name::new(text.as_bytes()).expect("a name").to_owned()
}

pub fn find(tree: &Tree, path: &str) -> Node {
    block_on(tree.find(path.as_bytes(), Last::Keep)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A record of a copy's events.
#[derive(Default)]
pub struct Watch {
    pub failures: Mutex<Vec<Failure>>,
    pub kept: Mutex<Vec<u64>>,
}

impl Observer for Watch {
    fn see(&self, event: Event) {
        match event {
            Event::Failed(failure) => self.failures.lock().unwrap().push(failure),
            Event::Copied { .. } => {}
            Event::PartKept { size_bytes, .. } => self.kept.lock().unwrap().push(size_bytes),
        }
    }
}

/// Copies `from` of one tree to `to` of another.
pub fn copy(from: &Tree, what: &str, to: &Tree, target: &str, options: Options) -> (Tally, Arc<Watch>) {
    let watch = Arc::<Watch>::default();
    let copier = Copier::start(options, watch.clone()).expect("threads");
    add(&copier, from, what, to, target);
    (copier.finish(), watch)
}

pub fn add(copier: &Copier, from: &Tree, what: &str, to: &Tree, target: &str) {
    let node = find(from, what);
    let to = To { dir: to.root(), name: name(target), dir_path: Vec::new(), unfinished: None };
    copier.add(From { node, path: what.into() }, to);
}

/// Copies without any failure.
#[track_caller]
pub fn copy_well(from: &Tree, what: &str, to: &Tree, target: &str, options: Options) -> Tally {
    let (tally, watch) = copy(from, what, to, target, options);
    assert!(watch.failures.lock().unwrap().is_empty(), "{:?}", watch.failures.lock().unwrap());
    assert_eq!(tally.failed, 0);
    tally
}

/// An entry of a tree as users see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub file_type: FileType,
    pub mode: Mode,
    pub owner: (u32, u32),
    pub mtime: Option<(i64, u32)>,
    pub content: Vec<u8>,
    /// The first name of the same file.
    pub same_as: Option<String>,
}

/// Returns all descendants of a directory: names, contents, and with `exact` modes, owners, times and hard
/// links.
pub fn see(tree: &Tree, path: &str, exact: bool) -> BTreeMap<String, Seen> {
    let mut seen = BTreeMap::new();
    let mut first_names: BTreeMap<(u64, u64), String> = BTreeMap::new();
    let mut ahead = vec![(String::new(), find(tree, path))];
    while let Some((path, node)) = ahead.pop() {
        let attr = block_on(node.attr()).unwrap();
        let key = (attr.fsid, attr.fileid);
        let same_as = (exact && attr.nlink > 1 && attr.file_type != FileType::Directory)
            .then(|| first_names.entry(key).or_insert_with(|| path.clone()).clone());
        let content = content(&node, &attr);
        let is_link = attr.file_type == FileType::Symlink;
        seen.insert(
            path.clone(),
            Seen {
                file_type: attr.file_type,
                mode: if exact && !is_link { attr.mode } else { Mode::default() },
                owner: if exact { (attr.uid, attr.gid) } else { (0, 0) },
                mtime: exact.then_some((attr.mtime.secs, attr.mtime.nanos)),
                content,
                same_as,
            },
        );
        if attr.file_type == FileType::Directory {
            let mut below = children(&node);
            // The last is taken first, so that names are visited in order.
            below.sort_by(|a, b| b.0.cmp(&a.0));
            ahead.extend(below.into_iter().map(|(name, node)| (format!("{path}/{name}"), node)));
        }
    }
    seen
}

pub fn children(dir: &Node) -> Vec<(String, Node)> {
    block_on(async {
        let mut listing = dir.list(true).await.unwrap();
        let mut found = Vec::new();
        while let Some(page) = listing.next_page().await.unwrap() {
            for item in page {
                let name = item.name.as_name().to_string();
                found.push((name, item.node.expect("a node")));
            }
        }
        found
    })
}

fn content(node: &Node, attr: &Attr) -> Vec<u8> {
    match attr.file_type {
        FileType::Regular => {
            let mut bytes = Vec::new();
            let file = block_on(node.open(OpenFlags::READ)).unwrap();
            block_on(file.read_to(0, &mut bytes, Default::default())).unwrap();
            bytes
        }
        FileType::Symlink => node.read_link().wait().unwrap(),
        _ => Vec::new(),
    }
}

/// Returns pseudo-random bytes.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
