//! A cache's store after a power loss.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tombolo_back_local_dir::{LocalDir, Options as DirOptions};
use tombolo_core::Error;
use tombolo_core::fs::PersistentHandle;
use tombolo_crash_images::{each_image, mark, record, recorded};
use tombolo_layer_cache::store::{OpenError, Store, StoreOptions};
use tombolo_layer_cache::{Contract, Options};
use tombolo_test_support::once_free;

use crate::world::{Cached, Origin, grow_old, pattern};

const BLOCK_BYTES: u32 = 4096;

fn cached(area: &Path, dir: &Path, capacity_bytes: u64) -> (Origin, Cached) {
    let export = LocalDir::open(&area.join("origin"), DirOptions::default()).expect("the origin");
    let origin = Origin::of(Arc::new(export));
    let store = StoreOptions {
        capacity_bytes,
        block_bytes: BLOCK_BYTES,
        commit_pause: Duration::from_millis(1),
        ..StoreOptions::default()
    };
    let options = Options { contract: Contract::Exclusive, ..Options::default() };
    let cached = origin.cached_in(dir, options, store);
    (origin, cached)
}

/// Returns the identity of a file: its name before the first point, which renames preserve.
fn id_of(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

fn old_files() -> impl Iterator<Item = String> {
    (0..12).map(|n| format!("old-{n}"))
}

/// Marks the number and handle given to a file.
fn see(cached: &Cached, name: &str) {
    let session = &cached.session;
    let node = session.lookup(name).expect("there").node;
    let handle = session.handle_of(node).expect("a handle");
    let bytes: String = handle.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    mark(&format!("{name} {} {} {bytes}", node.0, handle.kind));
}

/// Reads, changes and evicts in three lives; the last one ends abruptly.
fn work(dir: &Path) {
    let area = dir.parent().expect("an area");
    for life in 0..3_u8 {
        // The second has a smaller capacity than it reads.
        let (_origin, cached) = cached(area, dir, if life == 1 { 200_000 } else { 4 << 20 });
        let session = &cached.session;
        if life == 2 {
            // Earlier changes are old enough to be cached from now on.
            grow_old();
        }
        for (n, text) in old_files().enumerate() {
            session.get(&text).expect("read");
            see(&cached, &text);
            let new = format!("new-{life}-{n}");
            session.put(&new, &pattern(3000 + 700 * n, n as u8));
            see(&cached, &new);
            let renamed = format!("{new}.renamed");
            match n % 4 {
                0 => session.put(&new, &pattern(9000 + n, life)),
                1 => {
                    session.unlink(&new).expect("unlink");
                }
                2 => {
                    session.rename(&new, &renamed, Default::default()).expect("rename");
                }
                _ => drop(session.get(&new).expect("read")),
            }
        }
        if life == 2 {
            let all = fs::read_dir(area.join("origin")).expect("list").flatten();
            all.for_each(|file| drop(session.get(&file.file_name().to_string_lossy()).expect("read")));
            cached.cache.flush();
            std::mem::forget(cached);
        }
    }
}

struct Given {
    /// File to which each number was given.
    numbers: HashMap<u64, String>,
    handles: Vec<(PersistentHandle, String)>,
}

impl Given {
    fn of(marks: &[&str]) -> Self {
        let mut given = Self { numbers: HashMap::new(), handles: Vec::new() };
        for mark in marks {
            let fields: Vec<_> = mark.split(' ').collect();
            let id = id_of(fields[0]).to_owned();
            let bytes =
                (0..fields[3].len() / 2).map(|at| u8::from_str_radix(&fields[3][2 * at..2 * at + 2], 16));
            let bytes = bytes.map(|byte| byte.expect("a digit")).collect();
            given
                .handles
                .push((PersistentHandle { kind: fields[2].parse().expect("a number"), bytes }, id.clone()));
            given.numbers.insert(fields[1].parse().expect("a number"), id);
        }
        given
    }
}

fn data_files(dir: &Path) -> Vec<PathBuf> {
    let folders = fs::read_dir(dir.join("objects")).into_iter().flatten().flatten();
    folders
        .flat_map(|folder| fs::read_dir(folder.path()).expect("list").flatten())
        .map(|file| file.path())
        .collect()
}

#[test]
fn cache_survives_power_loss_without_wrong_or_leaked_data() {
    if let Some(dir) = recorded() {
        return work(&dir);
    }
    let area = tempfile::tempdir().expect("a directory");
    let origin_dir = area.path().join("origin");
    fs::create_dir(&origin_dir).expect("mkdir");
    for (n, text) in old_files().enumerate() {
        fs::write(origin_dir.join(text), pattern(20_000 + n, n as u8)).expect("write");
    }
    grow_old();
    let log = record(&area.path().join("cache"));
    let files = fs::read_dir(&origin_dir)
        .expect("list")
        .flatten()
        .map(|file| (file.file_name().into_string().expect("a name"), fs::read(file.path()).expect("read")));
    let files: Vec<_> = files.collect();
    let (all_read, warm) = (AtomicU64::new(0), AtomicU64::new(0));
    each_image(&log, |dir, _, marks| {
        let given = Given::of(marks);
        let (origin, cached) = cached(area.path(), dir, 4 << 20);
        assert!(!dir.join("index.db.damaged").exists(), "the index was lost");
        let session = &cached.session;
        for text in old_files() {
            session.get(&text).expect("read");
        }
        all_read.fetch_add(1, Ordering::Relaxed);
        warm.fetch_add(u64::from(origin.asked("read") < 6), Ordering::Relaxed);
        let mut nodes = HashMap::new();
        for (name, bytes) in &files {
            assert!(session.get(name).expect("read") == *bytes, "{name}");
            let entry = session.lookup(name).expect("there");
            assert_eq!(entry.attr.size, bytes.len() as u64, "{name}");
            let before = given.numbers.get(&entry.node.0);
            assert!(before.is_none_or(|before| before == id_of(name)), "{name} has the number of {before:?}");
            nodes.insert(id_of(name), entry.node);
        }
        for (handle, id) in &given.handles {
            match session.resolve(handle) {
                Ok(found) => assert_eq!(Some(&found.node), nodes.get(&**id), "the handle of {id}"),
                Err(error) => assert!(matches!(error, Error::Stale), "{error}"),
            }
        }
        cached.cache.flush();
        drop(cached);
        let is_busy = |error: &OpenError| matches!(error, OpenError::InUse { .. });
        let store = once_free(|| Store::open_existing(dir), is_busy).expect("a store");
        let info = store.info();
        let all_bytes = files.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        assert!(
            info.kept_bytes <= all_bytes,
            "{} bytes are reported as cached of {all_bytes}",
            info.kept_bytes
        );
        drop(store);
        let found = data_files(dir);
        assert!(
            found.len() as u64 <= info.files,
            "{} files for {} known: {found:?}",
            found.len(),
            info.files
        );
    });
    let (all_read, warm) = (all_read.into_inner(), warm.into_inner());
    eprintln!("{warm} {all_read}");
    assert!(all_read == 1 || warm > 0, "no data were cached in any of {all_read} images");
}
