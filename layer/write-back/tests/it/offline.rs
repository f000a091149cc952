//! Work in new directories while the origin is unreachable, under the contract *exclusive*: through the cache
//! alone, and with write-back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tombolo_core::Error;
use tombolo_test_support::{Act, Scripted, Session};

use crate::shown::rename;
use crate::world::{Origin, Proxy};

/// Route of changes to the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    WriteThrough,
    WriteBack,
}

/// Work before the origin becomes unreachable, and the directories used afterwards.
struct Case {
    name: &'static str,
    work: fn(&Session, &dyn Fn()),
    dirs: &'static [&'static str],
}

fn put(at: &Session, path: &str) {
    at.put(path, path.as_bytes());
}

const fn case(name: &'static str, dirs: &'static [&'static str], work: fn(&Session, &dyn Fn())) -> Case {
    Case { name, work, dirs }
}

const CASES: [Case; 8] = [
    case("nothing", &[""], |_, _| {}),
    case("new names in the root", &[""], |at, _| (0..3).for_each(|name| put(at, &name.to_string()))),
    case("a directory with files", &["dir", ""], |at, _| {
        at.dir("dir");
        (0..5).for_each(|name| put(at, &format!("dir/{name}")));
        at.unlink("dir/0").expect("removed");
    }),
    case("directories in it", &["dir", "dir/sub", "dir/sub/empty"], |at, _| {
        at.dir("dir");
        at.dir("dir/sub");
        at.dir("dir/sub/empty");
        put(at, "dir/sub/file");
    }),
    case("more in it once it has arrived", &["dir", "dir/sub"], |at, arrived| {
        at.dir("dir");
        put(at, "dir/file");
        arrived();
        put(at, "dir/later");
        at.dir("dir/sub");
        rename(at, "dir/file", "dir/moved");
    }),
    case("renamed once it has arrived", &["dir", ""], |at, arrived| {
        at.dir("before");
        put(at, "before/file");
        arrived();
        rename(at, "before", "dir");
        put(at, "dir/later");
        arrived();
        put(at, "dir/last");
    }),
    case("moved to another directory", &["dir", "dir/moved"], |at, arrived| {
        at.dir("dir");
        at.dir("other");
        put(at, "other/file");
        arrived();
        rename(at, "other", "dir/moved");
        put(at, "dir/moved/later");
    }),
    case("another mode", &["dir"], |at, arrived| {
        at.dir("dir");
        put(at, "dir/file");
        arrived();
        at.chmod("dir", 0o700).expect("set");
    }),
];

fn run(case: &Case, way: Way) {
    let context = format!("{}, {way:?}", case.name);
    eprintln!("{context}");
    let is_cut = Arc::<AtomicBool>::default();
    let line = is_cut.clone();
    let script = move |_| Act::fail_if(line.load(Ordering::SeqCst), Error::Disconnected);
    let origin = Origin::with(|inner| Scripted::over(inner, script));
    origin.direct.put("old", b"old");
    let proxy: Proxy = origin.proxy();
    let at = match way {
        Way::WriteBack => proxy.session.clone(),
        Way::WriteThrough => Session::attach(&proxy.cache),
    };
    if way == Way::WriteThrough {
        at.names("");
    }
    let arrived = || {
        proxy.write_back.flush().expect("it arrives");
    };
    (case.work)(&at, &arrived);
    arrived();
    is_cut.store(true, Ordering::SeqCst);
    let asked = origin.asked_in_all();
    for dir in case.dirs {
        let node = at.lookup(dir).unwrap_or_else(|error| panic!("{context}: {dir}: {error}")).node;
        let listed = at.names(node);
        // A file written through has other attributes, which only the origin knows.
        for name in listed.iter().filter(|_| way == Way::WriteBack) {
            at.lookup(&format!("{dir}/{name}"))
                .unwrap_or_else(|error| panic!("{context}: {dir}/{name}: {error}"));
        }
        assert!(matches!(at.lookup(&format!("{dir}/none")), Err(Error::NotFound)), "{context}: {dir}");
        if way == Way::WriteBack {
            put(&at, &format!("{dir}/new"));
            at.dir(&format!("{dir}/new-dir"));
            assert_eq!(at.names(node).len(), listed.len() + 2, "{context}: {dir}");
        }
    }
    assert_eq!(origin.asked_in_all() - asked, 0, "{context}");
    is_cut.store(false, Ordering::SeqCst);
    arrived();
    for dir in case.dirs {
        assert_eq!(origin.direct.names(dir), at.names(dir), "{context}: {dir}");
    }
}

#[test]
fn directories_made_here_are_worked_in_without_the_origin() {
    for case in &CASES {
        [Way::WriteThrough, Way::WriteBack].into_iter().for_each(|way| run(case, way));
    }
}

#[test]
fn directory_that_others_may_have_changed_is_relisted() {
    let origin = Origin::new();
    let proxy = origin.proxy();
    proxy.dir("dir");
    put(&proxy, "dir/file");
    proxy.write_back.flush().expect("it arrives");
    rename(&proxy, "dir", "moved");
    proxy.write_back.flush().expect("it arrives");
    origin.direct.put("moved/theirs", b"theirs");
    let mtime = proxy.attr("moved").mtime;
    crate::shown::set_mtime(&origin.direct, "moved", mtime.secs).expect("set");
    proxy.cache.invalidate();
    let node = proxy.lookup("moved").expect("there").node;
    assert_eq!(proxy.names(node), ["file", "theirs"]);
}
