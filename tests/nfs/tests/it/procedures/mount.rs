//! The six procedures of MOUNT.

use tombolo_nfs_tests::client::{Caller, Expect, Transport, mode};
use tombolo_nfs_tests::fixture::{Fixture, local_dir, on_each};
use tombolo_nfs_tests::test_server::{PATH, Plan, no_squash};
use tombolo_wire_nfs3::mount::Status;
use tombolo_wire_nfs3::{FileType3, Reply, Status as NfsStatus};

#[track_caller]
fn assert_not_mounted(fixture: &Fixture, path: &str, expected: Status) {
    match fixture.nfs.mnt(path) {
        Reply::Ok(mounted) => panic!("{path} is mounted: {mounted:?}"),
        Reply::Failed(status, ()) => assert_eq!(status, expected, "{path}"),
    }
}

on_each!(null_answers_nothing, |fixture| fixture.nfs.mount_null());

on_each!(mnt_returns_root_and_flavors, |fixture| {
    let Reply::Ok(mounted) = fixture.nfs.mnt(PATH) else { panic!("not mounted") };
    assert_eq!(fixture.attr(&mounted.root).file_type, FileType3::Directory);
    assert!(mounted.flavors.contains(&1), "AUTH_SYS: {:?}", mounted.flavors);
    assert!(mounted.root.as_handle().as_bytes().len() <= 64);
    let over_udp = fixture.server.nfs_over(Transport::Udp).root(PATH);
    assert_eq!(over_udp, mounted.root, "the same however it is asked for");
    // MNT needs no identity: AUTH_NONE is enough.
    assert_eq!(fixture.nfs.as_caller(Caller::Anonymous).root(PATH), mounted.root);
});

on_each!(mnt_of_a_directory_beneath_an_export, |fixture| {
    let dir = fixture.dir("dir");
    let deep = fixture.nfs.mkdir(&dir, b"deep", mode(0o755)).done().handle();
    fixture.file("file", b"");
    fixture.nfs.symlink(&fixture.root, b"link", b"dir", mode(0o777)).done();
    assert_eq!(fixture.nfs.root("/export/dir"), dir);
    assert_eq!(fixture.nfs.root("/export/dir/deep/"), deep);
    assert_eq!(fixture.nfs.root("/export/"), fixture.root);
    assert_not_mounted(fixture, "/export/nothing", Status::NoEnt);
    assert_not_mounted(fixture, "/export/file", Status::NotDir);
    assert_not_mounted(fixture, "/export/link", Status::NotDir);
});

#[test]
fn mnt_of_an_unexported_path_fails() {
    let fixture = Fixture::on_host();
    let tree = fixture.on_disk("").expect("on the host");
    let names = ["", "/", "/exp", "/exports", "/etc", "export/..", "/export/..", "/export/../../etc"];
    for path in names.into_iter().chain(tree.to_str()) {
        assert_not_mounted(&fixture, path, Status::NoEnt);
    }
}

#[test]
fn an_export_may_lie_within_another() {
    let outer = tombolo_nfs_tests::fixture::scratch();
    let inner = outer.path().join("inner");
    std::fs::create_dir(&inner).expect("a directory");
    let plan = Plan::over(local_dir(outer.path())).and("/export/inner", local_dir(&inner), no_squash());
    let fixture = Fixture::new(plan, None);
    let through = fixture.nfs.lookup(&fixture.root, b"inner").done().handle;
    let root = fixture.nfs.root("/export/inner");
    assert_ne!(root, through, "the longer path has an export of its own");
    assert_eq!(fixture.attr(&root).fileid, fixture.attr(&through).fileid);
    assert_eq!(fixture.nfs.lookup(&root, b"..").done().handle, root, "nothing lies above it");
    assert_eq!(fixture.nfs.lookup(&through, b"..").done().handle, fixture.root);
    fixture.nfs.rename(&fixture.root, b"x", &root, b"x").failed(NfsStatus::XDev);
}

#[test]
fn dump_lists_mounts_until_umnt() {
    let fixture = Fixture::of_two();
    fixture.nfs.root("/other");
    fixture.nfs.root("/other");
    let here = |path: &str| ("127.0.0.1".to_owned(), path.to_owned());
    assert_eq!(fixture.nfs.dump(), [here("/export"), here("/other")]);
    fixture.nfs.umnt("/export");
    fixture.nfs.umnt("/never-mounted");
    assert_eq!(fixture.nfs.dump(), [here("/other")]);
    fixture.nfs.root("/export");
    fixture.nfs.umnt_all();
    assert_eq!(fixture.nfs.dump(), []);
}

#[test]
fn export_lists_all_exports() {
    let fixture = Fixture::of_two();
    let paths: Vec<_> = fixture.nfs.exports().into_iter().map(|(path, _)| path).collect();
    assert_eq!(paths, ["/export", "/other"]);
}
