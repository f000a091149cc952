//! LIST of the side program.

use tombolo_nfs_tests::client::{Caller, Expect, Message, Nfs, Verdict};
use tombolo_nfs_tests::fixture::{Fixture, on_each};
use tombolo_wire_nfs3::args::AccessBits;
use tombolo_wire_nfs3::side::{self, ListArgs, ListReply};
use tombolo_wire_nfs3::{Cookie3, CookieVerifier, FileHandle, FileHandleBuf, Reply, Sattr3, Status};
use tombolo_wire_rpc::Accepted;
use tombolo_wire_xdr::Encoder;

const START: Cookie3 = Cookie3(0);
const NONE: CookieVerifier = CookieVerifier([0; 8]);
const BITS: AccessBits = AccessBits::READ.union(AccessBits::LOOKUP);

/// A directory in a reply to LIST.
#[derive(Debug)]
struct Dir {
    handle: FileHandleBuf,
    access: AccessBits,
    names: Vec<String>,
    last: Cookie3,
    verifier: CookieVerifier,
    eof: bool,
}

fn call(nfs: &Nfs, args: ListArgs<'_>) -> (Result<Vec<Dir>, Status>, usize) {
    let procedure = side::Procedure::List.number();
    let mut message = Message::new(7, side::PROGRAM, side::VERSION, procedure, nfs.caller());
    Encoder::new(&mut message.arguments).value(&args);
    let answer = nfs.send(&message);
    let (mut dirs, bytes) = (Vec::new(), answer.result_bytes().len());
    for listed in answer.results::<ListReply<'_>>() {
        let page = match listed.page {
            Reply::Ok(page) => page,
            Reply::Failed(status, _) => return (Err(status), bytes),
        };
        let entries: Vec<_> = page.entries.into_iter().collect();
        assert!(entries.iter().all(|entry| entry.attributes.is_some() || entry.entry.name.starts_with(b".")));
        let names = entries.iter().map(|entry| String::from_utf8_lossy(entry.entry.name).into_owned());
        dirs.push(Dir {
            handle: listed.dir.to_owned(),
            access: listed.access,
            names: names.filter(|name| name != "." && name != "..").collect(),
            last: entries.last().map_or(START, |last| last.entry.cookie),
            verifier: page.verifier,
            eof: page.eof,
        });
    }
    (Ok(dirs), bytes)
}

/// Returns the arguments for a listing from the start.
fn from_start(dir: FileHandle<'_>, bytes_max: u32) -> ListArgs<'_> {
    ListArgs { dir, cookie: START, verifier: NONE, bytes_max, with_subtree: true, access: BITS }
}

fn list(nfs: &Nfs, dir: &FileHandleBuf, bytes_max: u32) -> Vec<Dir> {
    let (dirs, bytes) = call(nfs, from_start(dir.as_handle(), bytes_max));
    assert!(bytes <= bytes_max as usize, "{bytes} of {bytes_max}");
    dirs.expect("a listing")
}

/// Creates `top` with `a` and `b` in it, three files each, and `a/deep`.
fn tree(fixture: &Fixture) -> [FileHandleBuf; 4] {
    let mkdir = |dir: &FileHandleBuf, name: &str| {
        fixture.nfs.mkdir(dir, name.as_bytes(), tombolo_nfs_tests::client::mode(0o755)).done().handle()
    };
    let top = fixture.dir("top");
    let (a, b) = (mkdir(&top, "a"), mkdir(&top, "b"));
    let deep = mkdir(&a, "deep");
    for dir in [&a, &b] {
        for n in 0..3 {
            fixture.file_in(dir, &format!("file-{n}"), b"");
        }
    }
    [top, a, b, deep]
}

on_each!(one_call_lists_tree_as_readdirplus_does, |fixture| {
    let [top, a, b, deep] = tree(fixture);
    let dirs = list(&fixture.nfs, &top, 1 << 16);
    let mut handles: Vec<_> = dirs.iter().map(|dir| dir.handle).collect();
    assert_eq!(handles[0], top, "the one that was asked for comes first");
    handles.sort_by_key(|handle| handle.as_handle().as_bytes().to_vec());
    let mut all = vec![top, a, b, deep];
    all.sort_by_key(|handle| handle.as_handle().as_bytes().to_vec());
    assert_eq!(handles, all);
    for dir in dirs {
        let plain = fixture.nfs.readdirplus(&dir.handle, START, NONE, 8192, 8192).done();
        assert_eq!((dir.names, dir.eof), (plain.names(), true));
        assert_eq!(dir.access, BITS);
    }
});

on_each!(reply_fits_count_and_lists_subdirectories_whole, |fixture| {
    let [top, ..] = tree(fixture);
    let mut counts = Vec::new();
    for bytes_max in (700..4000).step_by(52) {
        let dirs = list(&fixture.nfs, &top, bytes_max);
        assert!(dirs.iter().skip(1).all(|dir| dir.eof));
        counts.push(dirs.len());
    }
    assert!(counts.is_sorted() && counts[0] < 4 && counts.last() == Some(&4), "{counts:?}");
});

on_each!(large_directory_continues_at_its_cookie, |fixture| {
    let dir = fixture.dir("dir");
    let names: Vec<_> = (0..50).map(|n| format!("entry-{n:02}")).collect();
    for name in &names {
        fixture.file_in(&dir, name, b"");
    }
    let (mut found, mut cookie, mut verifier) = (Vec::new(), START, NONE);
    loop {
        let args = ListArgs { cookie, verifier, ..from_start(dir.as_handle(), 2000) };
        let mut dirs = call(&fixture.nfs, args).0.expect("a page");
        assert_eq!(dirs.len(), 1);
        let page = dirs.remove(0);
        (cookie, verifier) = (page.last, page.verifier);
        found.extend(page.names);
        if page.eof {
            break;
        }
    }
    found.sort();
    assert_eq!(found, names);
});

on_each!(unreadable_directory_is_left_out, |fixture| {
    let [top, a, b, _] = tree(fixture);
    fixture.nfs.setattr(&a, Sattr3 { mode: Some(0o700), ..Sattr3::default() }, None).done();
    let user = fixture.as_user(1000);
    let dirs = list(&user, &top, 1 << 16);
    assert_eq!(dirs.iter().map(|dir| dir.handle).collect::<Vec<_>>(), [top, b]);
    assert_eq!(call(&user, from_start(a.as_handle(), 1 << 16)).0.expect_err("not allowed"), Status::Acces);
});

on_each!(malformed_call_gets_its_error, |fixture| {
    let file = fixture.file("file", b"");
    let of = |dir, bytes_max| call(&fixture.nfs, from_start(dir, bytes_max)).0.expect_err("wrong");
    assert_eq!(of(file.as_handle(), 1 << 16), Status::NotDir);
    assert_eq!(of(fixture.root.as_handle(), 100), Status::TooSmall);
    assert_eq!(of(FileHandle::new(b"nonsense").expect("a handle"), 1 << 16), Status::BadHandle);
    let send = |version, procedure| {
        let message = Message::new(7, side::PROGRAM, version, procedure, &Caller::ROOT);
        fixture.nfs.send(&message).verdict
    };
    assert_eq!(send(side::VERSION, 0), Verdict::Accepted(Accepted::Success));
    assert_eq!(send(side::VERSION, 99), Verdict::Accepted(Accepted::ProcUnavail));
    assert_eq!(send(side::VERSION, 1), Verdict::Accepted(Accepted::GarbageArgs));
    assert_eq!(send(9, 0), Verdict::Accepted(Accepted::ProgMismatch { low: 1, high: 1 }));
});
