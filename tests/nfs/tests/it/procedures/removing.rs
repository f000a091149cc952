//! REMOVE, RMDIR, RENAME.

use tombolo_nfs_tests::client::{Expect, mode};
use tombolo_nfs_tests::fixture::{
    Fixture, assert_around, assert_one_of, assert_unchanged, on_each, removed_and_open,
};
use tombolo_test_support::until;
use tombolo_wire_nfs3::args::CreateHow;
use tombolo_wire_nfs3::{Cookie3, CookieVerifier, Reply, Status};

on_each!(remove_removes_a_name, |fixture| {
    let file = fixture.file("file", b"data");
    fixture.nfs.link(&file, &fixture.root, b"again").done();
    let before = fixture.attr(&fixture.root);
    let wcc = fixture.nfs.remove(&fixture.root, b"file").done();
    assert_around(fixture, &fixture.root, &before, &wcc);
    assert_eq!(fixture.names(), ["again"]);
    assert_eq!((fixture.attr(&file).nlink, fixture.contents(&file)), (1, b"data".to_vec()));
    fixture.nfs.remove(&fixture.root, b"again").done();
    fixture.nfs.getattr(&file).failed(Status::Stale);
    fixture.nfs.read(&file, 0, 4).failed(Status::Stale);
    let wcc = fixture.nfs.remove(&fixture.root, b"again").failed(Status::NoEnt);
    assert_unchanged(fixture, &fixture.root, &wcc);
});

/// Removes a file that the server keeps open between calls; its space must be freed.
#[test]
fn removed_file_frees_its_space() {
    let fixture = Fixture::on_host();
    let tree = fixture.on_disk("").expect("on the host");
    let remove = || _ = fixture.nfs.remove(&fixture.root, b"file").done();
    let replace = || _ = fixture.nfs.rename(&fixture.root, b"new", &fixture.root, b"file").done();
    for (is_read, go) in [(true, &remove as &dyn Fn()), (false, &remove), (true, &replace), (false, &replace)]
    {
        std::fs::write(tree.join("file"), [7; 100_000]).expect("a file");
        std::fs::write(tree.join("new"), b"").expect("a file");
        let file = fixture.nfs.lookup(&fixture.root, b"file").done().handle;
        if is_read {
            fixture.nfs.read(&file, 0, 10).done();
        }
        go();
        until("its space is freed", || removed_and_open(&tree).is_empty());
    }
}

on_each!(remove_of_a_directory_is_refused, |fixture| {
    fixture.dir("dir");
    match fixture.nfs.remove(&fixture.root, b"dir") {
        Reply::Ok(_) => panic!("a directory was removed"),
        // One is Linux's error, the other POSIX's.
        Reply::Failed(status, wcc) => {
            assert_one_of(&status, &[Status::IsDir, Status::Perm]);
            assert_unchanged(fixture, &fixture.root, &wcc);
        }
    }
    let file = fixture.file("file", b"");
    fixture.nfs.remove(&file, b"x").failed(Status::NotDir);
    fixture.nfs.symlink(&fixture.root, b"link", b"file", mode(0o777)).done();
    fixture.nfs.remove(&fixture.root, b"link").done();
    assert_eq!(fixture.names(), ["dir", "file"], "the link, not its target");
});

on_each!(rmdir_removes_empty_directories_only, |fixture| {
    let dir = fixture.dir("dir");
    fixture.file_in(&dir, "inner", b"");
    fixture.file("file", b"");
    for (name, status) in
        [(&b"dir"[..], Status::NotEmpty), (b"file", Status::NotDir), (b"nothing", Status::NoEnt)]
    {
        let wcc = fixture.nfs.rmdir(&fixture.root, name).failed(status);
        assert_unchanged(fixture, &fixture.root, &wcc);
    }
    fixture.nfs.remove(&dir, b"inner").done();
    let before = fixture.attr(&fixture.root);
    let wcc = fixture.nfs.rmdir(&fixture.root, b"dir").done();
    assert_around(fixture, &fixture.root, &before, &wcc);
    assert_eq!(fixture.names(), ["file"]);
    fixture.nfs.getattr(&dir).failed(Status::Stale);
    fixture.nfs.mkdir(&dir, b"late", mode(0o755)).failed(Status::Stale);
});

on_each!(rename_moves_and_replaces, |fixture| {
    let (file, dir, old) = (fixture.file("file", b"new"), fixture.dir("dir"), fixture.file("other", b""));
    fixture.nfs.rename(&fixture.root, b"other", &dir, b"taken").done();
    let (from, to) = (fixture.attr(&fixture.root), fixture.attr(&dir));
    let ok = fixture.nfs.rename(&fixture.root, b"file", &dir, b"taken").done();
    assert_around(fixture, &fixture.root, &from, &ok.from_dir);
    assert_around(fixture, &dir, &to, &ok.to_dir);
    assert_eq!(fixture.nfs.lookup(&dir, b"taken").done().handle, file, "the handle goes along");
    assert_eq!(fixture.contents(&file), b"new");
    fixture.nfs.getattr(&old).failed(Status::Stale);
    fixture.nfs.rename(&dir, b"taken", &dir, b"taken").done();
    assert_eq!(fixture.contents(&file), b"new", "renamed to itself");
});

on_each!(rename_refuses_impossible_moves, |fixture| {
    let (file, dir) = (fixture.file("file", b""), fixture.dir("dir"));
    let full = fixture.nfs.mkdir(&fixture.root, b"full", mode(0o755)).done().handle();
    fixture.file_in(&full, "inner", b"");
    let refused = |from: &[u8], to_dir, to: &[u8], statuses: &[Status]| match fixture.nfs.rename(
        &fixture.root,
        from,
        to_dir,
        to,
    ) {
        Reply::Ok(_) => panic!("{} became {}", from.escape_ascii(), to.escape_ascii()),
        Reply::Failed(status, wcc) => {
            assert_one_of(&status, statuses);
            assert_unchanged(fixture, &fixture.root, &wcc.from_dir);
            assert_unchanged(fixture, to_dir, &wcc.to_dir);
        }
    };
    let root = &fixture.root;
    refused(b"nothing", root, b"new", &[Status::NoEnt]);
    // RFC 1813 §3.3.14: of different kinds, or a directory with entries: EXIST; Linux is more exact.
    refused(b"file", root, b"dir", &[Status::Exist, Status::IsDir]);
    refused(b"dir", root, b"file", &[Status::Exist, Status::NotDir]);
    refused(b"dir", root, b"full", &[Status::Exist, Status::NotEmpty]);
    refused(b"dir", &dir, b"inner", &[Status::Inval]);
    refused(b"file", &file, b"inner", &[Status::NotDir]);
    assert_eq!(fixture.names(), ["dir", "file", "full"]);
});

/// Verifies ESTALE, since the server still has the directory open: upon ENOENT a client would not resolve the
/// path again.
#[test]
fn names_in_a_removed_directory_are_stale() {
    let fixture = Fixture::on_host();
    let (nfs, root) = (&fixture.nfs, &fixture.root);
    let file = fixture.file("file", b"data");
    for _ in 0..2 {
        let dir = nfs.mkdir(root, b"dir", mode(0o755)).done().handle();
        nfs.create(&dir, b"name", CreateHow::Guarded(mode(0o644))).done();
        std::fs::remove_dir_all(fixture.on_disk("dir").expect("on the host")).expect("removed");
        nfs.lookup(&dir, b"name").failed(Status::Stale);
        nfs.remove(&dir, b"name").failed(Status::Stale);
        nfs.rmdir(&dir, b"name").failed(Status::Stale);
        nfs.create(&dir, b"new", CreateHow::Guarded(mode(0o644))).failed(Status::Stale);
        nfs.mkdir(&dir, b"new", mode(0o755)).failed(Status::Stale);
        nfs.rename(&dir, b"name", root, b"new").failed(Status::Stale);
        nfs.rename(root, b"file", &dir, b"new").failed(Status::Stale);
        nfs.link(&file, &dir, b"new").failed(Status::Stale);
        nfs.readdir(&dir, Cookie3(0), CookieVerifier::default(), 4096).failed(Status::Stale);
    }
    nfs.lookup(root, b"dir").failed(Status::NoEnt);
}
