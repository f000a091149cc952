//! LOOKUP and READLINK.

use tombolo_nfs_tests::client::{Expect, mode};
use tombolo_nfs_tests::place::{assert_seen, on_each};
use tombolo_wire_nfs3::args::MknodWhat;
use tombolo_wire_nfs3::{FileType3, Status};

#[test]
fn lookup_finds_a_node_and_tells_its_attributes_and_the_directorys() {
    on_each(|place| {
        let (file, dir) = (place.file("file", b"12345"), place.dir("dir"));
        let inner = place.file_in(&dir, "inner", b"");
        let found = place.nfs.lookup(&place.root, b"file").done();
        assert_eq!((found.handle, found.attributes), (file, Some(place.attr(&file))));
        assert_eq!(found.dir_attributes, Some(place.attr(&place.root)));
        assert_eq!(place.nfs.lookup(&dir, b"inner").done().handle, inner);
    });
}

#[test]
fn lookup_of_nothing_tells_the_directorys_attributes() {
    on_each(|place| {
        let dir_attributes = place.nfs.lookup(&place.root, b"nothing").failed(Status::NoEnt);
        assert_eq!(dir_attributes, Some(place.attr(&place.root)));
        let file = place.file("file", b"");
        assert_eq!(place.nfs.lookup(&file, b"name").failed(Status::NotDir), Some(place.attr(&file)));
        place.nfs.lookup(&file, b".").failed(Status::NotDir);
        place.nfs.lookup(&file, b"..").failed(Status::NotDir);
    });
}

#[test]
fn lookup_goes_up_but_never_out_of_the_export() {
    on_each(|place| {
        let dir = place.dir("dir");
        let deep = place.nfs.mkdir(&dir, b"deep", mode(0o755)).done().handle();
        let up = |from| place.nfs.lookup(&from, b"..").done().handle;
        assert_eq!((up(deep), up(dir)), (dir, place.root));
        assert_eq!(up(place.root), place.root, "nothing lies above");
        assert_eq!(place.nfs.lookup(&deep, b".").done().handle, deep);
        place.nfs.rename(&dir, b"deep", &place.root, b"moved").done();
        assert_eq!(up(deep), place.root, "where it is now");
    });
}

#[test]
fn lookup_does_not_follow_links() {
    on_each(|place| {
        place.dir("dir");
        let link = place.nfs.symlink(&place.root, b"link", b"dir", mode(0o777)).done().handle();
        let found = place.nfs.lookup(&place.root, b"link").done();
        assert_eq!(found.handle, link);
        assert_eq!(found.attributes.expect("attributes").file_type, FileType3::Symlink);
        place.nfs.lookup(&link, b"inner").failed(Status::NotDir);
    });
}

#[test]
fn readlink_tells_where_a_link_leads() {
    on_each(|place| {
        let long = vec![b't'; 1000];
        for (name, target) in
            [(&b"up"[..], &b"../../etc/passwd"[..]), (b"odd", b"\xff\xfe\x01"), (b"long", &long)]
        {
            let link = place.nfs.symlink(&place.root, name, target, mode(0o777)).done().handle();
            let told = place.nfs.readlink(&link).done();
            assert_eq!(told.target, target);
            assert_seen(place, &link, told.attributes);
        }
    });
}

#[test]
fn readlink_of_what_is_no_link_is_invalid() {
    on_each(|place| {
        let (file, dir) = (place.file("file", b""), place.dir("dir"));
        let fifo = place.nfs.mknod(&place.root, b"fifo", MknodWhat::Fifo(mode(0o644))).done().handle();
        for node in [file, dir, fifo] {
            assert_eq!(place.nfs.readlink(&node).failed(Status::Inval), Some(place.attr(&node)));
        }
    });
}
