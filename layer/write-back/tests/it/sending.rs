//! A proxy that is killed at each operation that sends changes to the origin: its successor continues from
//! the disk, and the origin ends up with all changes.

use std::sync::{Arc, Mutex};

use rusqlite::Connection;
use tombolo_back_memory::Memory;
use tombolo_core::fs::RenameFlags;
use tombolo_layer_write_back::Options;
use tombolo_test_support::Session;

use crate::cut::Cut;
use crate::shown::{HIDDEN, hidden, put_named, rename, set_mtime, tree};
use crate::volatile::Volatile;
use crate::world::{Origin, Proxy, on_request};

/// Initial state of the origin, changes, and an invariant of the origin.
struct History {
    name: &'static str,
    before: fn(&Session),
    change: fn(&Session),
    always: fn(&Session) -> bool,
}

fn swap(session: &Session, one: &str, other: &str) {
    session.rename(one, other, RenameFlags::EXCHANGE).expect("exchanged");
}

fn has(session: &Session, path: &str, any: &[&[u8]]) -> bool {
    session.get(path).is_ok_and(|bytes| any.contains(&bytes.as_slice()))
}

/// Returns more bytes than one stable write has.
fn large(seed: u8) -> Vec<u8> {
    crate::restart::pattern(100_000, seed)
}

/// Modification time of a root that nothing changes.
const LONG_AGO: i64 = 1000;

const HISTORIES: [History; 7] = [
    History {
        name: "new files in new directories",
        before: |_| {},
        change: |at| {
            at.mkdir("dir").expect("made");
            at.mkdir("dir/sub").expect("made");
            at.put("dir/sub/small", b"small");
            at.put("large", &large(1));
            at.link("dir/sub/small", "link").expect("linked");
            at.symlink("dir/symlink", "sub/small".as_bytes()).expect("linked");
            set_mtime(at, "dir/sub", 1000).expect("set");
            ["large", "dir/sub"].iter().for_each(|path| at.set_xattr(path, "user.a", b"new").expect("set"));
        },
        // A visible name has its data.
        always: |at| at.get("large").is_err() || has(at, "large", &[&large(1)]),
    },
    History {
        name: "files that are replaced, as editors do",
        before: |at| {
            at.put("one", b"old");
            at.put("two", b"old");
        },
        change: |at| {
            at.put("one.new", b"new");
            rename(at, "one.new", "one");
            rename(at, "two", "two~");
            at.put("two", &large(2));
        },
        always: |at| {
            has(at, "one", &[b"old", b"new"]) && (has(at, "two", &[b"old"]) || has(at, "two~", &[b"old"]))
        },
    },
    History {
        name: "files that are changed in place",
        before: |at| {
            at.put("small", b"before");
            at.put("large", &large(1));
            at.put("cut", &large(2));
            at.set_xattr("cut", "user.a", b"old").expect("set");
        },
        change: |at| {
            at.overwrite("small", 3, b"after");
            at.overwrite("large", 70_000, &large(3));
            at.truncate("cut", 500).expect("cut");
            at.overwrite("cut", 90_000, b"end");
            at.chmod("small", 0o640).expect("changed");
            at.chown("large", 7, 7).expect("changed");
            at.set_xattr("large", "user.a", &[1]).expect("set");
            at.remove_xattr("cut", "user.a").expect("removed");
        },
        always: |at| at.lookup("small").is_ok() && at.lookup("large").is_ok() && at.lookup("cut").is_ok(),
    },
    History {
        name: "names in rings and moved directories",
        before: |at| {
            put_named(at, &["a", "b", "c"]);
            at.mkdir("dir").expect("made");
            at.mkdir("dir/sub").expect("made");
            at.put("dir/sub/file", b"file");
        },
        change: |at| {
            swap(at, "a", "b");
            swap(at, "b", "c");
            rename(at, "dir/sub", "sub");
            rename(at, "dir", "sub/dir");
            at.put("sub/dir/new", b"new");
        },
        always: |_| true,
    },
    History {
        name: "removals, and a directory that becomes a file",
        before: |at| {
            for dir in ["gone", "kept"] {
                at.dir(dir);
            }
            at.put("gone/file", b"file");
            at.put("kept/file", b"file");
            at.put("file", b"file");
        },
        change: |at| {
            at.unlink("gone/file").expect("removed");
            at.rmdir("gone").expect("removed");
            at.put("gone", b"a file now");
            at.unlink("file").expect("removed");
            at.mkdir("file").expect("made");
            rename(at, "kept/file", "file/moved");
        },
        // A new directory may have a hidden name until the file is removed.
        always: |at| {
            let mut dirs = at.names("");
            dirs.retain(|dir| {
                has(at, &format!("{dir}/file"), &[b"file"]) || has(at, &format!("{dir}/moved"), &[b"file"])
            });
            !dirs.is_empty()
        },
    },
    History {
        name: "files with several names",
        before: |at| {
            at.put("one", b"hello");
            at.link("one", "other").expect("linked");
            at.mkdir("dir").expect("made");
        },
        change: |at| {
            at.link("one", "dir/third").expect("linked");
            at.unlink("one").expect("removed");
            rename(at, "other", "one");
            at.put("other", b"new");
            at.link("other", "dir/fourth").expect("linked");
        },
        always: |at| ["one", "other"].iter().any(|name| has(at, name, &[b"hello"])),
    },
    History {
        name: "names that are exchanged in a directory",
        before: |at| {
            at.mkdir("dir").expect("made");
            put_named(at, &["dir/a", "dir/b"]);
            set_mtime(at, "", LONG_AGO).expect("set");
        },
        change: |at| swap(at, "dir/a", "dir/b"),
        always: |_| true,
    },
];

/// Starts a proxy that sends one operation at a time, on request only.
fn one_at_a_time(origin: &Origin) -> Proxy {
    origin.proxy_with(Options { in_flight_max: 1, ..on_request() })
}

/// Returns `true` if the proxy was killed before everything was sent.
fn killed_at(history: &History, nth: u64, is_performed: bool, restarts: bool) -> bool {
    let context =
        format!("{}, operation {nth}, performed: {is_performed}, restart: {restarts}", history.name);
    let cut: Arc<Cut> = Arc::default();
    let mut volatile = None;
    let mut origin = Origin::with(|memory| {
        let (export, state) = Volatile::over(&memory);
        volatile = Some(state);
        cut.over(export)
    });
    let volatile = volatile.expect("made");
    let twin: Arc<Memory> = Arc::default();
    let twin = Session::attach(&*twin);
    [&origin.direct, &twin].into_iter().for_each(history.before);
    let proxy = one_at_a_time(&origin);
    [&proxy.session, &twin].into_iter().for_each(history.change);
    proxy.sync();
    // Asserted at the end, since the hook runs on a thread of the proxy.
    let missing: Arc<Mutex<Vec<Vec<String>>>> = Arc::default();
    let (direct, always, noted) = (origin.direct.clone(), history.always, missing.clone());
    cut.before_each(move || {
        if !always(&direct) {
            noted.lock().expect("a lock").push(direct.names(""));
        }
    });
    cut.at(nth, is_performed, origin.path(""));
    let flushed = proxy.write_back.flush();
    let left = cut.left();
    assert_eq!(flushed.is_err(), left.is_some(), "{context}: {flushed:?}");
    let was_killed = left.is_some();
    let proxy = match left {
        Some(left) => {
            drop(proxy);
            origin.go_on_from(left);
            if restarts {
                volatile.restart();
            }
            one_at_a_time(&origin)
        }
        None => proxy,
    };
    assert_eq!(tree(&proxy.session, false), tree(&twin, false), "{context}: here");
    proxy.write_back.flush().unwrap_or_else(|error| panic!("{context}: {error}"));
    assert_eq!(tree(&origin.direct, false), tree(&twin, false), "{context}: at the origin");
    assert_eq!(tree(&origin.direct, true), tree(&proxy.session, true), "{context}: times");
    // Hidden names in the root leave no trace.
    let [there, wanted] = [&origin.direct, &twin].map(|at| at.attr("").mtime);
    assert!(wanted.secs != LONG_AGO || there == wanted, "{context}: the root is of {there:?}");
    let status = proxy.write_back.status();
    assert_eq!((status.dirty_bytes, status.dirty_nodes, status.conflicts), (0, 0, 0), "{context}");
    assert_eq!(volatile.wrong(), Vec::<String>::new(), "{context}");
    assert_eq!(
        *missing.lock().expect("a lock"),
        Vec::<Vec<String>>::new(),
        "{context}: something is missing meanwhile"
    );
    assert_eq!(hidden(&origin.direct), [""; 0], "{context}: hidden names are left over");
    was_killed
}

/// Kills the proxy after each operation; with `TOMBOLO_LONG` also before each, and with origins that do and
/// do not restart.
fn killed_everywhere(index: usize) {
    let history = &HISTORIES[index];
    let ways = match std::env::var_os("TOMBOLO_LONG") {
        None => &[(true, true)][..],
        Some(_) => &[(true, true), (true, false), (false, true), (false, false)],
    };
    for (is_performed, restarts) in ways {
        let last = (0..).find(|nth| !killed_at(history, *nth, *is_performed, *restarts)).expect("it ends");
        assert!((5..100).contains(&last), "{}: {last} operations", history.name);
    }
}

#[test]
fn new_files_arrive_wherever_the_proxy_is_killed() {
    killed_everywhere(0);
}

#[test]
fn replaced_files_arrive_wherever_the_proxy_is_killed() {
    killed_everywhere(1);
}

#[test]
fn changed_files_arrive_wherever_the_proxy_is_killed() {
    killed_everywhere(2);
}

#[test]
fn names_in_rings_arrive_wherever_the_proxy_is_killed() {
    killed_everywhere(3);
}

#[test]
fn removals_arrive_wherever_the_proxy_is_killed() {
    killed_everywhere(4);
}

#[test]
fn multiply_linked_files_arrive_after_any_kill() {
    killed_everywhere(5);
}

#[test]
fn times_of_directories_arrive_wherever_the_proxy_is_killed() {
    killed_everywhere(6);
}

/// Replaces the hidden names of a killed proxy, in its journal and at the origin, by those of versions whose
/// journals had no tag. Returns their number at the origin.
fn remove_tag(origin: &Origin) -> usize {
    let journal = Connection::open(origin.path("write-back/journal.db")).expect("a journal");
    let tag = "delete from numbers where what = 'tag' returning value";
    let tag: i64 = journal.query_row(tag, [], |row| row.get(0)).expect("a tag");
    let tagged = format!("{HIDDEN}{tag:08x}-");
    let untag = "update names set name = cast(replace(cast(name as text), ?, ?) as blob)";
    journal.execute(untag, [&tagged, HIDDEN]).expect("renamed");
    let mut all = origin.direct.names("");
    all.retain(|name| name.starts_with(&tagged));
    all.iter().for_each(|name| rename(&origin.direct, name, &name.replace(&tagged, HIDDEN)));
    all.len()
}

#[test]
fn hidden_names_of_earlier_journals_are_cleaned_up() {
    let mut count = 0;
    for nth in 0.. {
        let context = format!("operation {nth}");
        let cut: Arc<Cut> = Arc::default();
        let mut origin = Origin::with(|memory| cut.over(memory));
        put_named(&origin.direct, &["one", "other"]);
        let proxy = one_at_a_time(&origin);
        swap(&proxy.session, "one", "other");
        proxy.put("new", b"new");
        proxy.sync();
        cut.at(nth, true, origin.path(""));
        drop(proxy.write_back.flush());
        let Some(left) = cut.left() else { break };
        drop(proxy);
        origin.go_on_from(left);
        count += remove_tag(&origin);
        let proxy = one_at_a_time(&origin);
        proxy.write_back.flush().unwrap_or_else(|error| panic!("{context}: {error}"));
        for (name, bytes) in [("one", "other"), ("other", "one"), ("new", "new")] {
            assert!(has(&origin.direct, name, &[bytes.as_bytes()]), "{context}: {name}");
        }
        assert_eq!(hidden(&origin.direct), [""; 0], "{context}: hidden names are left over");
    }
    assert!(count > 3, "{count} hidden names were met");
}
