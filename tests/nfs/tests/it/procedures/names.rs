//! LOOKUP and READLINK.

use tombolo_nfs_tests::client::{Expect, mode};
use tombolo_nfs_tests::fixture::{assert_seen, on_each};
use tombolo_wire_nfs3::Status;
use tombolo_wire_nfs3::args::MknodKind;

on_each!(lookup_returns_a_node_with_both_attributes, |fixture| {
    let (file, dir) = (fixture.file("file", b"12345"), fixture.dir("dir"));
    let inner = fixture.file_in(&dir, "inner", b"");
    let found = fixture.nfs.lookup(&fixture.root, b"file").done();
    assert_eq!((found.handle, found.attributes), (file, Some(fixture.attr(&file))));
    assert_eq!(found.dir_attributes, Some(fixture.attr(&fixture.root)));
    assert_eq!(fixture.nfs.lookup(&dir, b"inner").done().handle, inner);
});

on_each!(a_failed_lookup_returns_the_directorys_attributes, |fixture| {
    let dir_attributes = fixture.nfs.lookup(&fixture.root, b"nothing").failed(Status::NoEnt);
    assert_eq!(dir_attributes, Some(fixture.attr(&fixture.root)));
    let file = fixture.file("file", b"");
    assert_eq!(fixture.nfs.lookup(&file, b"name").failed(Status::NotDir), Some(fixture.attr(&file)));
    fixture.nfs.lookup(&file, b".").failed(Status::NotDir);
    fixture.nfs.lookup(&file, b"..").failed(Status::NotDir);
});

on_each!(lookup_goes_up_but_never_out_of_the_export, |fixture| {
    let dir = fixture.dir("dir");
    let deep = fixture.nfs.mkdir(&dir, b"deep", mode(0o755)).done().handle();
    let up = |from| fixture.nfs.lookup(&from, b"..").done().handle;
    assert_eq!((up(deep), up(dir)), (dir, fixture.root));
    assert_eq!(up(fixture.root), fixture.root, "nothing lies above");
    assert_eq!(fixture.nfs.lookup(&deep, b".").done().handle, deep);
    fixture.nfs.rename(&dir, b"deep", &fixture.root, b"moved").done();
    assert_eq!(up(deep), fixture.root, "where it is now");
});

on_each!(readlink_returns_the_target, |fixture| {
    let long = vec![b't'; 1000];
    for (name, target) in
        [(&b"up"[..], &b"../../etc/passwd"[..]), (b"odd", b"\xff\xfe\x01"), (b"long", &long)]
    {
        let link = fixture.nfs.symlink(&fixture.root, name, target, mode(0o777)).done().handle();
        let told = fixture.nfs.readlink(&link).done();
        assert_eq!(told.target, target);
        assert_seen(fixture, &link, told.attributes);
    }
});

on_each!(readlink_of_another_type_is_invalid, |fixture| {
    let (file, dir) = (fixture.file("file", b""), fixture.dir("dir"));
    let fifo = fixture.nfs.mknod(&fixture.root, b"fifo", MknodKind::Fifo(mode(0o644))).done().handle();
    for node in [file, dir, fifo] {
        assert_eq!(fixture.nfs.readlink(&node).failed(Status::Inval), Some(fixture.attr(&node)));
    }
});
