//! The six procedures of MOUNT.

use std::sync::Arc;

use tombolo_back_memory::Memory;
use tombolo_nfs_tests::bed::{PATH, Plan, no_squash};
use tombolo_nfs_tests::client::{Caller, Expect, Transport, mode};
use tombolo_nfs_tests::place::{Place, local_dir, on_each};
use tombolo_wire_nfs3::mount::Status;
use tombolo_wire_nfs3::{FileType3, Reply, Status as NfsStatus};

#[track_caller]
fn assert_not_mounted(place: &Place, path: &str, expected: Status) {
    match place.nfs.mnt(path) {
        Reply::Ok(mounted) => panic!("{path} is mounted: {mounted:?}"),
        Reply::Failed(status, ()) => assert_eq!(status, expected, "{path}"),
    }
}

#[test]
fn null_answers_nothing() {
    on_each(|place| place.nfs.mount_null());
}

#[test]
fn mnt_tells_the_root_and_the_flavors() {
    on_each(|place| {
        let Reply::Ok(mounted) = place.nfs.mnt(PATH) else { panic!("not mounted") };
        assert_eq!(place.attr(&mounted.root).file_type, FileType3::Directory);
        assert!(mounted.flavors.contains(&1), "AUTH_SYS: {:?}", mounted.flavors);
        assert!(mounted.root.as_handle().as_bytes().len() <= 64);
        let over_udp = place.bed.nfs_over(Transport::Udp).root(PATH);
        assert_eq!(over_udp, mounted.root, "the same however it is asked for");
        // Mounting is not using: a client may ask without saying who it is.
        assert_eq!(place.nfs.as_caller(Caller::Nobody).root(PATH), mounted.root);
    });
}

#[test]
fn mnt_of_a_directory_beneath_an_export() {
    on_each(|place| {
        let dir = place.dir("dir");
        let deep = place.nfs.mkdir(&dir, b"deep", mode(0o755)).done().handle();
        place.file("file", b"");
        place.nfs.symlink(&place.root, b"link", b"dir", mode(0o777)).done();
        assert_eq!(place.nfs.root("/export/dir"), dir);
        assert_eq!(place.nfs.root("/export/dir/deep/"), deep);
        assert_eq!(place.nfs.root("/export/"), place.root);
        assert_not_mounted(place, "/export/nothing", Status::NoEnt);
        assert_not_mounted(place, "/export/file", Status::NotDir);
        assert_not_mounted(place, "/export/link", Status::NotDir);
    });
}

#[test]
fn mnt_of_what_is_not_exported_finds_nothing() {
    let place = Place::on_host();
    let tree = place.on_disk("").expect("on the host");
    let names = ["", "/", "/exp", "/exports", "/etc", "export/..", "/export/..", "/export/../../etc"];
    for path in names.into_iter().chain(tree.to_str()) {
        assert_not_mounted(&place, path, Status::NoEnt);
    }
}

#[test]
fn an_export_may_lie_within_another() {
    let outer = tombolo_nfs_tests::place::scratch();
    let inner = outer.path().join("inner");
    std::fs::create_dir(&inner).expect("a directory");
    let plan = Plan::over(local_dir(outer.path())).and("/export/inner", local_dir(&inner), no_squash());
    let place = Place::new(plan, None);
    let through = place.nfs.lookup(&place.root, b"inner").done().handle;
    let root = place.nfs.root("/export/inner");
    assert_ne!(root, through, "the longer path has an export of its own");
    assert_eq!(place.attr(&root).fileid, place.attr(&through).fileid);
    assert_eq!(place.nfs.lookup(&root, b"..").done().handle, root, "nothing lies above it");
    assert_eq!(place.nfs.lookup(&through, b"..").done().handle, place.root);
    place.nfs.rename(&place.root, b"x", &root, b"x").failed(NfsStatus::XDev);
}

#[test]
fn dump_tells_who_has_mounted_what_until_it_is_unmounted() {
    let memory = || Arc::new(Memory::default());
    let plan = Plan::over(memory()).and("/other", memory(), no_squash());
    let place = Place::new(plan, None);
    place.nfs.root("/other");
    place.nfs.root("/other");
    let here = |path: &str| ("127.0.0.1".to_owned(), path.to_owned());
    assert_eq!(place.nfs.dump(), [here("/export"), here("/other")]);
    place.nfs.umnt("/export");
    place.nfs.umnt("/never-mounted");
    assert_eq!(place.nfs.dump(), [here("/other")]);
    place.nfs.root("/export");
    place.nfs.umnt_all();
    assert_eq!(place.nfs.dump(), []);
}

#[test]
fn export_tells_what_there_is() {
    let memory = || Arc::new(Memory::default());
    let plan = Plan::over(memory()).and("/other", memory(), no_squash());
    let place = Place::new(plan, None);
    let paths: Vec<_> = place.nfs.exports().into_iter().map(|(path, _)| path).collect();
    assert_eq!(paths, ["/export", "/other"]);
}
