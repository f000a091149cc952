//! Trees of the maximum depth, and trees without a bottom.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

use crate::common::{Watch, add, attach, copy, find, local, memory, see};
use libtombolo::copy::{Copier, Options, Step};
use libtombolo::{Tree, block_on, remove_tree};
use tempfile::TempDir;
use tombolo_core::fs::{
    Create, DirEntry, DirPage, Entry, Exclusive, FileType, Mode, Name, NewMode, NodeId, OpenFlags,
};
use tombolo_core::{Answer, Error};
use tombolo_layer_basic::around::{Call, Payload};
use tombolo_layer_basic::{Around, Layered};
use tombolo_sys::namespace::make_directory;
use tombolo_sys::open::{OpenFlags as SysFlags, open_entry, open_root};

/// More than a thread's stack, a process's descriptors and the longest path can handle.
const DEPTH: usize = 10_000;

/// Limits descriptors to fewer than there are levels.
fn limit_descriptors() {
    let id = std::process::id().to_string();
    let status = Command::new("prlimit").args(["--pid", &id, "--nofile=4000:4000"]).status();
    assert!(status.expect("prlimit(1)").success());
}

/// Makes `d/d/d/…` in a directory, with a file at the bottom.
fn dig(top: &Path) {
    let mut dir: OwnedFd = open_root(top).unwrap();
    for _ in 0..DEPTH {
        make_directory(dir.as_fd(), b"d", 0o755).unwrap();
        dir = open_entry(dir.as_fd(), b"d", SysFlags::PATH | SysFlags::DIRECTORY, 0).unwrap();
    }
    let flags = SysFlags::CREATE | SysFlags::WRONLY;
    drop(File::from(open_entry(dir.as_fd(), b"bottom", flags, 0o644).unwrap()));
}

/// Returns the number of nested directories named `d`, and whether the file is in the last.
fn depth(top: &Path) -> (usize, bool) {
    let (mut dir, mut count) = (open_root(top).unwrap(), 0);
    while let Ok(below) = open_entry(dir.as_fd(), b"d", SysFlags::PATH | SysFlags::DIRECTORY, 0) {
        (dir, count) = (below, count + 1);
    }
    (count, open_entry(dir.as_fd(), b"bottom", SysFlags::RDONLY, 0).is_ok())
}

fn remove(tree: &Tree, name: &str) -> (u64, Vec<String>) {
    let mut failed = Vec::new();
    let mut tell = |path: &[u8], error: &Error| {
        failed.push(format!("{}: {}", String::from_utf8_lossy(path), told(error)));
    };
    let name = crate::common::name(name);
    let removal = block_on(remove_tree(&tree.root(), name.as_name(), name.as_name().as_bytes(), &mut tell));
    assert_eq!(removal.failed as usize, failed.len());
    (removal.removed, failed)
}

fn told(error: &Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

/// Copies with and without attributes to set at the end, and a copy aborted half way down.
#[test]
fn tree_of_ten_thousand_levels_is_copied_and_removed() {
    limit_descriptors();
    // In memory where possible, unaffected by load on disks.
    let place =
        Some(PathBuf::from("/dev/shm")).filter(|place| place.is_dir()).unwrap_or_else(std::env::temp_dir);
    let (from, to) = (TempDir::new_in(&place).unwrap(), TempDir::new_in(&place).unwrap());
    dig(from.path());
    let (source, target) = (local(from.path()), local(to.path()));
    for preserve in [false, true] {
        let options = Options { recursive: true, preserve, ..Options::default() };
        let (tally, watch) = copy(&source, "d", &target, "d", options);
        assert!(watch.failures.lock().unwrap().is_empty(), "{:?}", watch.failures.lock().unwrap());
        assert_eq!((tally.directories, tally.files), (DEPTH as u64, 1));
        assert_eq!(depth(to.path()), (DEPTH, true));
        assert_eq!(remove(&target, "d"), (DEPTH as u64 + 1, Vec::new()));
    }
    let copier = Copier::start(
        Options { recursive: true, preserve: true, ..Options::default() },
        Arc::<Watch>::default(),
    );
    let copier = copier.unwrap();
    add(&copier, &source, "d", &target, "d");
    while copier.tally().directories < DEPTH as u64 / 2 {
        std::thread::yield_now();
    }
    drop(copier);
    assert!(remove(&target, "d").1.is_empty());
    assert_eq!(remove(&source, "d"), (DEPTH as u64 + 1, Vec::new()));
}

/// More branches than concurrent walks, each deeper than the number of listings kept open, with entries
/// before and after the subdirectory.
#[test]
fn released_listing_resumes_at_its_position() {
    let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    for branch in 0..18 {
        let mut dir = from.path().join(format!("tree/{branch}"));
        for level in 0..24 {
            std::fs::create_dir_all(&dir).unwrap();
            for number in 0..4 {
                std::fs::write(dir.join(format!("{number}-{level}")), format!("{branch}")).unwrap();
            }
            dir = dir.join(format!("below-{level}"));
        }
    }
    let (source, middle, target) = (local(from.path()), attach(&memory(), "memory"), local(to.path()));
    let wanted = see(&source, "tree", false);
    assert_eq!(wanted.len(), 1 + 18 * 24 * 5);
    let options = Options { recursive: true, ..Options::default() };
    for (from, to) in [(&source, &middle), (&middle, &target)] {
        assert_eq!(copy(from, "tree", to, "tree", options).0.failed, 0);
        assert!(see(to, "tree", false) == wanted);
    }
    for tree in [&source, &middle, &target] {
        assert_eq!(remove(tree, "tree"), (1 + 18 * 24 * 5, Vec::new()));
    }
}

/// A layer that reports the same number for all directories, and optionally the same node.
#[derive(Clone, Default)]
struct Circle(Option<Arc<OnceLock<NodeId>>>);

impl Around for Circle {
    fn around<T: Payload>(&self, _: Call, inner: impl FnOnce() -> Answer<T>) -> Answer<T> {
        let circle = self.clone();
        inner().map(move |mut answer| {
            let any: &mut dyn std::any::Any = &mut answer;
            if let Some(entry) = any.downcast_mut::<Entry>() {
                circle.close(entry);
            }
            if let Some(page) = any.downcast_mut::<DirPage>() {
                let mut closed = DirPage::new(page.budget());
                for entry in page.iter() {
                    let mut found = entry.entry.copied();
                    found.iter_mut().for_each(|entry| circle.close(entry));
                    assert!(closed.push(DirEntry { entry: found.as_ref(), ..entry }));
                }
                if page.is_end() {
                    closed.set_end();
                }
                *page = closed;
            }
            answer
        })
    }
}

impl Circle {
    fn close(&self, entry: &mut Entry) {
        if entry.attr.file_type == FileType::Directory {
            entry.attr.fileid = 7;
            if let Some(first) = &self.0 {
                entry.node = *first.get_or_init(|| entry.node);
            }
        }
    }
}

/// Creates `top/again/again`, with a file in the upper two, and `other`.
fn plant_circle(honest: &Tree) {
    let make = |dir: &libtombolo::Node, name: &[u8]| {
        dir.make_dir(Name::new(name).unwrap(), Mode::new(0o755)).wait().unwrap()
    };
    let top = make(&honest.root(), b"top");
    let below = make(&top, b"again");
    make(&below, b"again");
    make(&honest.root(), b"other");
    for dir in [&top, &below] {
        let how = Create {
            mode: NewMode { mode: Mode::new(0o644), umask: Mode::new(0) },
            flags: OpenFlags::WRITE,
            exclusive: Exclusive::Yes,
        };
        drop(block_on(dir.create(Name::new(b"file").unwrap(), how)).unwrap());
    }
}

/// The subvolumes of btrfs behind a Linux server.
#[test]
fn directories_with_equal_numbers_are_distinguished() {
    let export = Arc::new(memory());
    plant_circle(&attach(&*export, "memory"));
    let tree = attach(&Layered::new(export, Arc::new(Circle::default())), "subvolumes");
    let target = attach(&memory(), "target");
    let (tally, _) = copy(&tree, "top", &target, "top", Options { recursive: true, ..Options::default() });
    assert_eq!((tally.directories, tally.files, tally.failed), (3, 2, 0));
    assert_eq!(remove(&tree, "top"), (5, Vec::new()));
}

#[test]
fn a_directory_that_contains_itself_is_an_error() {
    let export = Arc::new(memory());
    let honest = attach(&*export, "memory");
    plant_circle(&honest);
    let looped = attach(&Layered::new(export, Arc::new(Circle(Some(Arc::default())))), "looped");
    // One reference for each look-up released under another name.
    let _held: Vec<_> = (0..16).map(|_| find(&looped, "top")).collect();
    let target = attach(&memory(), "target");
    // Two sources that are the same directory do not contain each other.
    let options = Options { recursive: true, ..Options::default() };
    let watch = Arc::<Watch>::default();
    let copier = Copier::start(options, watch.clone()).unwrap();
    add(&copier, &looped, "top", &target, "top");
    add(&copier, &looped, "other", &target, "other");
    let tally = copier.finish();
    let failures = watch.failures.lock().unwrap();
    let mut from: Vec<_> = failures.iter().map(|failure| &*failure.from).collect();
    from.sort();
    assert_eq!(from, [&b"other/again"[..], b"top/again"]);
    for failure in &*failures {
        assert_eq!(failure.step, Step::Read);
        assert_eq!(told(&failure.error), "input/output error: the directory contains itself");
    }
    assert_eq!((tally.directories, tally.files, tally.failed), (2, 2, 2));
    assert_eq!(
        see(&target, "", false).keys().map(String::as_str).collect::<Vec<_>>(),
        ["", "/other", "/other/file", "/top", "/top/file"]
    );
    // Its ancestors stay, and everything else in it is removed.
    let (removed, failed) = remove(&looped, "top");
    assert_eq!(
        (removed, failed),
        (1, vec!["top/again: input/output error: the directory contains itself".into()])
    );
    find(&honest, "top/again/file");
}
