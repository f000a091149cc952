//! Random sequences of changes, and concurrent changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fastrand::Rng;
use libtombolo::{CacheOptions, Last, Tree, block_on};
use tombolo_core::fs::{OpenFlags, Write};
use tombolo_mem::Source;

use super::world::{ByPath, FILE, USER, World, cached, plainly};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// Returns a path of one to four components.
fn path(rng: &mut Rng) -> String {
    let len = rng.usize(1..=4);
    let mut parts: Vec<_> = (0..len).map(|_| NAMES[rng.usize(..NAMES.len())]).collect();
    if rng.u8(..8) == 0 {
        parts.insert(rng.usize(..=parts.len()), [".", "..", ""][rng.usize(..3)]);
    }
    parts.join("/").trim_start_matches('/').to_owned()
}

/// Makes a random change, if possible.
fn change(tree: &Tree, rng: &mut Rng) -> String {
    let (one, other) = (path(rng), path(rng));
    let Ok((dir, name)) = block_on(tree.find_parent(one.as_bytes())) else { return "nothing".into() };
    let name = name.as_name();
    let done = match rng.u8(..9) {
        0 | 1 => {
            let mode = tombolo_core::fs::Mode::new(0o755);
            ("mkdir", dir.make_dir(name, mode).wait().is_ok())
        }
        2 => {
            let is_dir = plainly(tree, one.as_bytes(), Last::Follow).is_ok_and(|attr| attr.nlink > 1);
            let dangles = plainly(tree, one.as_bytes(), Last::Keep).is_ok();
            if !is_dir && !dangles {
                tree.write(&one, &vec![b'x'; rng.usize(..100)]);
            }
            ("write", !is_dir && !dangles)
        }
        3 => ("write again", write_again(tree, &one, rng)),
        4 => {
            let target = if rng.bool() { format!("/{other}") } else { other.clone() };
            ("symlink", dir.make_link(name, target.as_bytes()).wait().is_ok())
        }
        5 => ("unlink", tree.unlink(&one).is_ok()),
        6 => ("rmdir", tree.rmdir(&one).is_ok()),
        7 => ("rename", tree.rename(&one, &other).is_ok()),
        _ => ("exchange", tree.exchange(&one, &other).is_ok()),
    };
    format!("{done:?} {one} {other}")
}

fn write_again(tree: &Tree, path: &str, rng: &mut Rng) -> bool {
    block_on(async {
        let Ok(node) = tree.find(path.as_bytes(), Last::Follow).await else { return false };
        let Ok(file) = node.open(OpenFlags::WRITE).await else { return false };
        let bytes = Source::from(vec![rng.u8(..); 8]);
        let how = Write { offset: rng.u64(..64), ..Write::default() };
        file.write_at(&how, bytes).resolve().await.is_ok()
    })
}

#[test]
fn cached_answers_equal_a_fresh_walk_after_any_change() {
    let steps = if std::env::var_os("TOMBOLO_LONG").is_some() { 1000 } else { 250 };
    for world in World::all() {
        for seed in 0..3 {
            let mut rng = Rng::with_seed(seed);
            let options = match seed {
                0 => CacheOptions { entries_max: 8, content_bytes_max: 4096, file_bytes_max: 80 },
                _ => CacheOptions::default(),
            };
            let (_, cached) = cached(&*world.export, USER, options, true);
            for step in 0..steps {
                let done = change(&world.other, &mut rng);
                for _ in 0..rng.usize(1..6) {
                    let (path, last) = (path(&mut rng), [Last::Follow, Last::Keep][rng.usize(..2)]);
                    let title = format!("{}, seed {seed}, step {step}, {done}: {path:?}", world.title);
                    let told = match last {
                        Last::Follow => cached.stat(path.as_bytes()),
                        Last::Keep => cached.lstat(path.as_bytes()),
                    };
                    let told = told.wait().map_err(|error| error.to_string());
                    let plain = plainly(&world.other, path.as_bytes(), last);
                    assert_eq!(told, plain.map_err(|error| error.to_string()), "{title}");
                    contents_are_right(&world, &cached, &path, &title);
                }
            }
            let counts = cached.counts();
            assert!(counts.from_memory > 100 && counts.asked > 100, "{counts:?}");
            for name in NAMES {
                empty(&world.other, name);
            }
        }
    }
}

fn contents_are_right(world: &World, cached: &libtombolo::CachedTree, path: &str, title: &str) {
    let plain = block_on(world.other.find(path.as_bytes(), Last::Follow));
    let bytes = cached.read(path.as_bytes()).wait().ok().flatten();
    if let (Ok(node), Some(bytes)) = (&plain, &bytes) {
        let mut now = Vec::new();
        let file = block_on(node.open(OpenFlags::READ)).expect("a file");
        block_on(file.read_to(0, &mut now, Default::default())).expect("read");
        assert_eq!(&**bytes, now, "{title}: bytes");
    }
    let listed = super::names(cached, path.as_bytes());
    let now = plain.ok().filter(|node| node.attr_found().is_none_or(|attr| attr.file_type == DIRECTORY));
    let now = now.map(|node| {
        let mut names: Vec<_> = crate::common::children(&node).into_iter().map(|(name, _)| name).collect();
        names.sort();
        names
    });
    assert_eq!(listed, now, "{title}: names");
}

const DIRECTORY: tombolo_core::fs::FileType = tombolo_core::fs::FileType::Directory;

/// Removes a tree.
fn empty(tree: &Tree, path: &str) {
    let Ok(node) = block_on(tree.find(path.as_bytes(), Last::Keep)) else { return };
    if node.attr_found().is_some_and(|attr| attr.file_type == DIRECTORY) {
        for (name, _) in crate::common::children(&node) {
            empty(tree, &format!("{path}/{name}"));
        }
        tree.rmdir(path).expect("empty");
    } else {
        tree.unlink(path).expect("unlinked");
    }
}

/// Decodes a file's number.
fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

#[test]
fn no_thread_reads_older_data_than_a_writer_acknowledged() {
    for world in World::planted() {
        world.other.write("top/a/b/c/file", &0_u64.to_le_bytes());
        let answered = AtomicU64::new(0);
        let writer = Arc::new(());
        let running = Arc::downgrade(&writer);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while running.strong_count() > 0 {
                        let before = answered.load(Ordering::SeqCst);
                        let bytes = world.cached.read(FILE).wait().expect("a file").expect("small");
                        assert!(
                            number(&bytes) >= before,
                            "{}: {} after {before} was answered",
                            world.title,
                            number(&bytes)
                        );
                    }
                });
            }
            for now in 1..1200_u64 {
                if now % 5 == 0 {
                    world.other.write("top/spare/next", &now.to_le_bytes());
                    world.other.rename("top/spare/next", "top/a/b/c/file").expect("renamed");
                } else {
                    write_number(&world.other, now);
                }
                answered.store(now, Ordering::SeqCst);
                if now % 16 == 0 {
                    std::thread::yield_now();
                }
            }
            drop(writer);
        });
        assert!(world.cached.counts().from_memory > 0);
    }
}

/// Writes the number in one write, so that no half of it is ever read.
fn write_number(tree: &Tree, now: u64) {
    block_on(async {
        let file = tree.node("top/a/b/c/file").open(OpenFlags::WRITE).await.expect("opened");
        let bytes = Source::from(now.to_le_bytes().to_vec());
        file.write_at(&Write::default(), bytes).resolve().await.expect("written");
    });
}
