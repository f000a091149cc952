//! Cached answers are used without a request, and never after a change.

mod beside;
mod bounds;
mod spy;
mod walks;
mod world;

use libtombolo::{CacheOptions, CachedTree, Last};
use tombolo_core::fs::{AccessMask, Attr, FileType, Mode};
use tombolo_core::{Error, Identity};

use self::world::{ByPath, FILE, USER, World, cached, plainly, plant};

#[test]
fn cached_answers_send_no_request() {
    for world in World::planted() {
        let World { cached, other, .. } = &world;
        let attr = cached.stat(FILE).wait().expect("the file");
        assert_eq!(attr, plainly(other, FILE, Last::Follow).unwrap());
        assert_eq!(world.warm("stat", |cached| cached.stat(FILE)).unwrap(), attr);
        assert!(matches!(cached.stat(b"top/none/below").wait(), Err(Error::NotFound)));
        assert!(matches!(
            world.warm("absence", |cached| cached.stat(b"top/none/below")),
            Err(Error::NotFound)
        ));
        assert!(!world.warm("exists", |cached| cached.exists(b"top/none/below")).unwrap());
        cached.access(FILE, AccessMask::READ).wait().expect("readable");
        world.warm("access", |cached| cached.access(FILE, AccessMask::READ)).unwrap();

        let_the_clock_go_on();
        // The first read of each may set its access time, and the second may notice that.
        for _ in 0..2 {
            assert_eq!(&*cached.read(b"top/a/b/link").wait().unwrap().unwrap(), b"first");
            assert_eq!(&*cached.read_link(b"top/a/b/link").wait().unwrap(), b"c/file");
            cached.list(b"top/a").wait().unwrap();
        }
        assert_eq!(&*world.warm("read", |cached| cached.read(b"top/a/b/link")).unwrap().unwrap(), b"first");
        assert_eq!(&*world.warm("link", |cached| cached.read_link(b"top/a/b/link")).unwrap(), b"c/file");
        let listed = world.warm("list", |cached| cached.list(b"top/a")).unwrap();
        let listed: Vec<_> =
            listed.iter().map(|entry| (entry.name.as_name().to_string(), entry.file_type)).collect();
        assert_eq!(listed, [("b".to_owned(), Some(FileType::Directory))]);
    }
}

#[test]
fn cached_names_are_not_requested_again() {
    for world in World::planted() {
        world.cached.stat(FILE).wait().expect("the file");
        let before = world.spy.requests();
        world.cached.stat(b"top//a/./b/c/../c/file").wait().expect("the file");
        assert_eq!(world.spy.requests(), before, "another path with the same names");
        world.other.chmod("top/a/b/c/file", 0o600);
        assert_eq!(world.cached.stat(FILE).wait().unwrap().mode, Mode::new(0o600));
        assert_eq!(world.spy.requests(), before + 1, "only the file has changed");
    }
}

#[test]
fn unreadable_objects_return_their_errors() {
    let world = World::memory();
    plant(&world.other);
    world.other.symlink("loop", "loop");
    let cached = &world.cached;
    for _ in 0..3 {
        assert!(matches!(cached.read(b"top").wait(), Err(Error::IsDirectory)));
        assert!(matches!(cached.read(b"top/a/b/c/file/").wait(), Err(Error::NotDirectory)));
        assert!(matches!(cached.list(FILE).wait(), Err(Error::NotDirectory)));
        assert!(matches!(cached.read_link(FILE).wait(), Err(Error::InvalidArgument)));
        assert!(matches!(cached.stat(b"loop").wait(), Err(Error::SymlinkLoop)));
        assert!(cached.lstat(b"loop").wait().is_ok());
        assert!(matches!(cached.stat(b"a\0b").wait(), Err(Error::InvalidArgument)));
        assert!(!cached.exists(b"top/a/b/c/file/below").wait().unwrap());
    }
    let options = CacheOptions { file_bytes_max: 5, ..CacheOptions::default() };
    let (_, small) = world::cached(&*world.export, USER, options, true);
    assert_eq!(small.read(FILE).wait().unwrap().as_deref(), Some(&b"first"[..]));
    world.other.write("top/a/b/c/file", b"second");
    assert_eq!(small.read(FILE).wait().unwrap(), None);
}

/// Waits until the next read gets an access time after the last change; then another read does not set it.
pub(crate) fn let_the_clock_go_on() {
    std::thread::sleep(std::time::Duration::from_millis(20));
}

/// A change by another session, with its name.
type Change = (&'static str, fn(&World));

const CHANGES: &[Change] = &[
    ("a write", |world| world.other.write("top/a/b/c/file", b"second")),
    ("chmod", |world| world.other.chmod("top/a/b/c/file", 0o600)),
    ("chmod of an ancestor", |world| world.other.chmod("top/a", 0o700)),
    ("a name", |world| world.other.write("top/a/b/new", b"new")),
    ("another target", |world| {
        world.other.unlink("top/a/b/link").unwrap();
        world.other.symlink("top/a/b/link", "new");
    }),
    ("unlink", |world| world.other.unlink("top/a/b/c/file").unwrap()),
    ("a file in its place", |world| world.other.write("top/a/b/c/file", b"third")),
    ("mkdir", |world| world.other.mkdir("top/a/absent")),
    ("rmdir", |world| world.other.rmdir("top/a/absent").unwrap()),
    ("a directory swapped", |world| {
        world.other.mkdir("top/else");
        world.other.mkdir("top/else/b");
        world.other.exchange("top/a", "top/else").unwrap();
    }),
    ("swapped back", |world| world.other.exchange("top/a", "top/else").unwrap()),
    ("rename over", |world| {
        world.other.write("top/spare/file", b"fourth, longer");
        world.other.rename("top/spare/file", "top/a/b/c/file").unwrap();
    }),
    ("rename of an ancestor", |world| world.other.rename("top/a", "top/moved").unwrap()),
    ("a directory in its place", |world| world.other.mkdir("top/a")),
];

const PATHS: &[&[u8]] =
    &[FILE, b"top", b"top/a", b"top/a/b/link", b"top/a/b/new", b"top/a/absent", b"top/moved/b/c/file", b"/"];

/// All answers about a path.
#[derive(Debug, PartialEq)]
struct Told {
    attr: Option<Attr>,
    own_attr: Option<Attr>,
    bytes: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    names: Option<Vec<String>>,
}

/// Returns the sorted names of a directory.
fn names(cached: &CachedTree, path: &[u8]) -> Option<Vec<String>> {
    let listed = cached.list(path).wait().ok()?;
    let mut names: Vec<_> = listed.iter().map(|entry| entry.name.as_name().to_string()).collect();
    names.sort();
    Some(names)
}

fn told(cached: &CachedTree, path: &[u8]) -> Told {
    Told {
        bytes: cached.read(path).wait().ok().flatten().map(|bytes| bytes.to_vec()),
        target: cached.read_link(path).wait().ok().map(|target| target.to_vec()),
        names: names(cached, path),
        // Last, as reads change the access time.
        attr: cached.stat(path).wait().ok(),
        own_attr: cached.lstat(path).wait().ok(),
    }
}

#[test]
fn each_change_is_visible_to_the_next_query() {
    for world in World::planted() {
        for (what, change) in CHANGES {
            let_the_clock_go_on();
            // Repeated, as listing a directory on the way may set its access time.
            for path in [PATHS; 3].into_iter().flatten() {
                told(&world.cached, path);
            }
            for path in PATHS {
                let before = world.spy.requests();
                drop(world.cached.stat(path).wait());
                let path_text = String::from_utf8_lossy(path);
                assert_eq!(world.spy.requests(), before, "{}: {path_text} before {what}", world.title);
            }
            change(&world);
            // The attributes first: reading sets them.
            for path in PATHS {
                let path_text = String::from_utf8_lossy(path);
                assert_eq!(
                    world.cached.stat(path).wait().ok(),
                    plainly(&world.other, path, Last::Follow).ok(),
                    "{}: {path_text} after {what}",
                    world.title
                );
            }
            for path in PATHS {
                let fresh = cached(&*world.export, USER, CacheOptions::default(), false).1;
                let path_text = String::from_utf8_lossy(path);
                let plain = told(&fresh, path);
                assert_eq!(told(&world.cached, path), plain, "{}: {path_text} after {what}", world.title);
            }
        }
    }
}

#[test]
fn revoked_permission_applies_to_the_next_query() {
    const NOBODY: u32 = 65_534;
    let user = Identity { uid: NOBODY, gid: NOBODY, ..Identity::ROOT };
    for world in World::planted() {
        world.other.chmod("", 0o755);
        let (spy, cached) = cached(&*world.export, user.clone(), CacheOptions::default(), true);
        for (path, without, with) in [("top/a", 0o700, 0o755), ("top/a/b/c/file", 0o600, 0o644)] {
            let is_file = path.as_bytes() == FILE;
            let_the_clock_go_on();
            for _ in 0..3 {
                assert_eq!(&*cached.read(FILE).wait().unwrap().unwrap(), b"first");
                cached.access(FILE, AccessMask::READ).wait().unwrap();
            }
            let before = spy.requests();
            cached.access(FILE, AccessMask::READ).wait().unwrap();
            cached.read(FILE).wait().unwrap();
            assert_eq!(spy.requests(), before, "{}: warm", world.title);
            world.other.chmod(path, without);
            assert!(matches!(cached.read(FILE).wait(), Err(Error::AccessDenied)), "{}: {path}", world.title);
            assert!(matches!(cached.access(FILE, AccessMask::READ).wait(), Err(Error::AccessDenied)));
            assert_eq!(cached.stat(FILE).wait().is_ok(), is_file, "{}: {path}", world.title);
            world.other.chmod(path, with);
            assert_eq!(&*cached.read(FILE).wait().unwrap().unwrap(), b"first");
            cached.access(FILE, AccessMask::READ).wait().unwrap();
        }
    }
}

#[test]
fn name_is_cached_with_version_from_before_look_up() {
    for world in World::planted() {
        for dir in ["else", "else/a", "else/a/b", "else/a/b/c"] {
            world.other.mkdir(dir);
        }
        world.other.write("else/a/b/c/file", b"of another tree");
        let other = world.other.clone();
        world.spy.after("lookup", move || other.exchange("top", "else").unwrap());
        world.cached.stat(FILE).wait().expect("one or the other");
        assert!(world.spy.is_done());
        for _ in 0..2 {
            assert_eq!(world.cached.stat(FILE).wait().unwrap().size, 15, "{}", world.title);
        }
        let other = world.other.clone();
        world.spy.after("lookup", move || other.write("absent", b"here"));
        assert!(world.cached.stat(b"absent").wait().is_err());
        assert!(world.spy.is_done());
        assert_eq!(world.cached.stat(b"absent").wait().unwrap().size, 4, "{}", world.title);
    }
}

#[test]
fn contents_are_cached_with_version_from_before_read() {
    for world in World::planted() {
        for operation in ["open", "read"] {
            world.other.write("top/a/b/c/file", b"first");
            let_the_clock_go_on();
            // Sets the access time, so that it is not the cause of the new version.
            let plain = cached(&*world.export, USER, CacheOptions::default(), false).1;
            plain.read(FILE).wait().expect("read");
            let other = world.other.clone();
            world.spy.after(operation, move || other.write("top/a/b/c/file", b"again"));
            world.cached.read(FILE).wait().expect("one or the other");
            assert!(world.spy.is_done());
            for _ in 0..3 {
                let bytes = world.cached.read(FILE).wait().unwrap().unwrap();
                assert_eq!(&*bytes, b"again", "{}: changed after {operation}", world.title);
            }
        }
        let other = world.other.clone();
        world.spy.after("readdir", move || other.write("top/spare/new", b""));
        drop(world.cached.list(b"top/spare").wait());
        assert!(world.spy.is_done());
        for _ in 0..3 {
            assert_eq!(world.cached.list(b"top/spare").wait().unwrap().len(), 1, "{}", world.title);
        }
    }
}

#[test]
fn absence_is_cached_until_something_is_created() {
    for world in World::planted() {
        for path in ["top/a/absent", "top/spare/deep/absent", "absent"] {
            (0..2).for_each(|_| assert!(world.cached.stat(path.as_bytes()).wait().is_err()));
            let absent = world.warm(path, |cached| cached.stat(path.as_bytes()));
            assert!(matches!(absent, Err(Error::NotFound)));
            if path.contains("deep") {
                world.other.mkdir("top/spare/deep");
                assert!(matches!(world.cached.stat(path.as_bytes()).wait(), Err(Error::NotFound)));
            }
            world.other.write(path, b"here");
            assert_eq!(world.cached.stat(path.as_bytes()).wait().unwrap().size, 4, "{}: {path}", world.title);
        }
    }
}

#[test]
fn moved_ancestor_invalidates_cached_paths() {
    for world in World::planted() {
        (0..2).for_each(|_| assert!(world.cached.stat(FILE).wait().is_ok()));
        for (from, to) in [("top", "gone"), ("gone/a", "gone/moved"), ("gone/moved/b", "gone/spare/b")] {
            world.other.rename(from, to).unwrap();
            assert!(
                matches!(world.cached.stat(FILE).wait(), Err(Error::NotFound)),
                "{}: {from} to {to}",
                world.title
            );
            world.other.rename(to, from).unwrap();
            assert!(
                world.cached.stat(FILE).wait().is_ok() || from != "top",
                "{}: {from} is back",
                world.title
            );
            world.other.rename(from, to).unwrap();
        }
    }
}
