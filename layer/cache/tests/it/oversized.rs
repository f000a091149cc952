//! Directories with more names than are cached, at an origin that lists new names first.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use tombolo_back_memory::Memory;
use tombolo_core::fs::{Cookie, DirBudget, DirEntry, DirPage, File, FileSystem, RenameFlags};
use tombolo_core::{Answer, Ctx, Error, forward};
use tombolo_layer_cache::store::StoreOptions;
use tombolo_layer_cache::{Contract, Options};
use tombolo_test_support::{Session, budget, wrapped};

use crate::world::{Cached, LONG, Origin, options};

/// Number of files in the root, of which the cache keeps more than half.
const COUNT: usize = 7000;

/// Name of the origin's oldest directory, longer than those of files.
const OLDEST: &str = "a-directory-that-the-origin-lists-last";

/// A session of an origin that lists the newest names first.
struct NewestFirst(Arc<dyn FileSystem>);

impl FileSystem for NewestFirst {
    fn readdir(&self, cx: &Ctx, file: File, cookie: Cookie, mut page: DirPage) -> Answer<DirPage> {
        let all = DirBudget { size_bytes: usize::MAX, plus: false, ..page.budget() };
        self.0.readdir(cx, file, Cookie::START, DirPage::new(all)).map(move |all| {
            let turned = |entry: DirEntry<'_>| Cookie((1 << 40) - entry.cookie.0);
            let mut left: Vec<_> = all.iter().filter(|entry| turned(*entry) > cookie).collect();
            left.reverse();
            if left.into_iter().all(|entry| page.push(DirEntry { cookie: turned(entry), ..entry })) {
                page.set_end();
            }
            page
        })
    }

    forward!(to self.0; lookup getattr setattr access readlink create create_unnamed mkdir symlink mknod link
        unlink rmdir rename open flush fsync read write statfs syncfs forget release
        profile persistent_handles);
}

/// Creates an origin with files 0 to [`COUNT`] in its root, and a cache of it.
fn oversized(dir: &Path, options: Options) -> (Origin, Cached) {
    let origin = Origin::of(wrapped(Arc::new(Memory::default()), NewestFirst));
    let subdirectory = origin.direct.dir(OLDEST);
    origin.direct.mknod((subdirectory, "inner"));
    for n in 0..COUNT {
        origin.direct.mknod(&n.to_string());
    }
    let small = StoreOptions { capacity_bytes: 8 << 20, ..StoreOptions::default() };
    let cached = origin.cached_in(dir, options, small);
    (origin, cached)
}

/// A reader of the root.
struct Reader<'a> {
    session: &'a Session,
    file: File,
    cookie: Cookie,
    seen: HashSet<String>,
}

impl<'a> Reader<'a> {
    /// Begins a listing, and reads at least this many names.
    fn begin(session: &'a Session, count: usize) -> Self {
        let (file, seen) = (session.open_dir("").expect("open"), HashSet::new());
        let mut reader = Self { session, file, cookie: Cookie::START, seen };
        reader.read(count);
        reader
    }

    /// Reads until this many names were returned, or to the end. None may be returned twice.
    fn read(&mut self, count: usize) {
        while self.seen.len() < count {
            let page = self.session.readdir(self.file, self.cookie, budget(16 << 10, false)).expect("a page");
            for entry in page.iter() {
                let name = String::from_utf8(entry.name.to_vec()).expect("text");
                assert!(self.seen.insert(name.clone()), "{name} comes twice");
                self.cookie = entry.cookie;
            }
            if page.is_end() {
                return;
            }
        }
    }
}

#[test]
fn name_added_to_oversized_directory_is_listed_once() {
    for contract in [Contract::Exclusive, Contract::Refresh(LONG)] {
        let dir = tempfile::tempdir().expect("a directory");
        let (origin, cached) = oversized(dir.path(), Options { attr_refresh: LONG, ..options(contract) });
        // One reader is among the cached names, the other beyond.
        let (mut early, mut late) = (Reader::begin(&cached, 100), Reader::begin(&cached, 5000));
        let kept = cached.store.info().objects;
        assert!((4096..5000).contains(&kept), "{kept} objects are kept");

        let rename = |from: &str, to: &str| cached.rename(from, to, RenameFlags::empty()).expect("renamed");
        cached.put("created", b"");
        cached.mkdir("made").expect("mkdir");
        cached.mknod("node");
        cached.symlink("symlink", b"created").expect("symlink");
        cached.link("4000", "link").expect("link");
        rename(&format!("{OLDEST}/inner"), "from-elsewhere");
        rename("6999", "from-a-cached-name");
        rename("5", "from-an-uncached-name");
        rename("7", "8");
        // One cached name and another are removed and added again.
        for again in ["6000", "10"] {
            cached.unlink(again).expect("removed");
            cached.put(again, b"");
        }
        cached.lookup("3").expect("there");

        let present = Reader::begin(&origin.direct, usize::MAX).seen;
        let listed = Reader::begin(&cached, usize::MAX).seen;
        let missing: Vec<_> = present.symmetric_difference(&listed).collect();
        assert!(missing.is_empty(), "{contract:?}: missing or removed: {missing:?}");
        let is_changed = |name: &str| ["6999", "6000", "5", "7", "10"].contains(&name);
        let stayed: Vec<_> = (0..COUNT).map(|n| n.to_string()).filter(|name| !is_changed(name)).collect();
        for reader in [&mut early, &mut late] {
            reader.read(usize::MAX);
            let missing: Vec<_> = stayed.iter().filter(|name| !reader.seen.contains(*name)).collect();
            assert!(missing.is_empty(), "{contract:?}: missing: {missing:?}");
        }
    }
}

#[test]
fn name_listed_from_cache_is_not_repeated_by_origin() {
    let dir = tempfile::tempdir().expect("a directory");
    let (origin, cached) = oversized(dir.path(), options(Contract::Exclusive));
    Reader::begin(&cached, 1);
    cached.lookup("3").expect("there");
    let mut reader = Reader::begin(&cached, 5000);
    assert!(reader.seen.contains("3"));
    // The cache finds that another client has changed the directory, and drops all names.
    origin.direct.mknod("another");
    cached.mknod("created");
    reader.read(usize::MAX);
    assert!((0..COUNT).all(|n| reader.seen.contains(&n.to_string())));
}

#[test]
fn names_listed_from_cache_are_skipped_in_few_requests() {
    let dir = tempfile::tempdir().expect("a directory");
    let (origin, cached) = oversized(dir.path(), options(Contract::Exclusive));
    Reader::begin(&cached, 1);
    for n in 0..1000 {
        cached.lookup(&n.to_string()).expect("there");
    }
    // All but the oldest, which the origin lists after these names.
    let reader = Reader::begin(&cached, COUNT + 2);
    // A page with space for names of files only is not the end.
    let small = cached.readdir(reader.file, reader.cookie, budget(56, false)).expect("a page");
    assert_eq!((small.len(), small.is_end()), (0, false));
    let asked = origin.asked("readdir");
    let last = cached.readdir(reader.file, reader.cookie, budget(512, false)).expect("a page");
    assert_eq!((last.len(), last.is_end()), (1, true));
    let count = origin.asked("readdir") - asked;
    assert!((1..10).contains(&count), "{count} requests");
}

#[test]
fn forgotten_position_fails_with_bad_cookie() {
    let dir = tempfile::tempdir().expect("a directory");
    let (_, cached) = oversized(dir.path(), Options::default());
    let reader = Reader::begin(&cached, 5000);
    let page = cached.readdir(reader.file, Cookie(reader.cookie.0 + 1), budget(4096, false));
    assert!(matches!(page, Err(Error::BadCookie)), "{page:?}");
    // Another process has given the position to no one, even if it has listed more names.
    let dir = tempfile::tempdir().expect("a directory");
    let (_, restarted) = oversized(dir.path(), Options::default());
    let other = Reader::begin(&restarted, 6000);
    let page = restarted.readdir(other.file, reader.cookie, budget(4096, false));
    assert!(matches!(page, Err(Error::BadCookie)), "{page:?}");
}

#[test]
fn listing_without_cached_names_continues_after_each_dot() {
    let (origin, dir) = (Origin::new(), tempfile::tempdir().expect("a directory"));
    origin.put_files(1, 0);
    let none = StoreOptions { capacity_bytes: 4096, ..StoreOptions::default() };
    let cached = origin.cached_in(dir.path(), Options::default(), none);
    let file = cached.open_dir("").expect("open");
    let mut cookie = Cookie::START;
    for name in [".", "..", "file-0"] {
        let page = cached.readdir(file, cookie, budget(4096, false)).expect("a page");
        let next = page.iter().next().expect("an entry");
        assert_eq!(next.name.escape_ascii().to_string(), name);
        cookie = next.cookie;
    }
}
