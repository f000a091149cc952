//! CREATE, MKDIR, SYMLINK, MKNOD, LINK.

use tombolo_nfs_tests::client::{Expect, New, mode};
use tombolo_nfs_tests::place::{Place, assert_around, assert_one_of, assert_unchanged, on_each};
use tombolo_wire_nfs3::args::{CreateHow, MknodWhat, StableHow};
use tombolo_wire_nfs3::{CreateVerifier, Fattr3, FileType3, Reply, Sattr3, SpecData3, Status, WccData};

const MINE: CreateHow = CreateHow::Exclusive(CreateVerifier(*b"\x01\xffmine\0\x7f"));
/// The next one that a client that counts would take.
const NEXT: CreateHow = CreateHow::Exclusive(CreateVerifier(*b"\x01\xffmine\0\x7e"));
const THEIRS: CreateHow = CreateHow::Exclusive(CreateVerifier(*b"theirs!!"));

/// What was made is what LOOKUP finds, and the directory's change is told.
#[track_caller]
fn assert_made(place: &Place, name: &[u8], before: &Fattr3, new: &New) {
    let found = place.nfs.lookup(&place.root, name).done();
    assert_eq!((new.handle, new.attributes), (Some(found.handle), found.attributes));
    assert_around(place, &place.root, before, &new.dir_wcc);
}

/// The name is taken, and nothing happens.
#[track_caller]
fn assert_refused(place: &Place, reply: Reply<New, WccData>, status: Status) {
    let wcc = reply.failed(status);
    assert_unchanged(place, &place.root, &wcc);
}

#[test]
fn create_unchecked_makes_a_file_or_takes_the_one_there_is() {
    on_each(|place| {
        let before = place.attr(&place.root);
        let set = Sattr3 { mode: Some(0o640), uid: Some(1000), gid: Some(100), ..Sattr3::default() };
        let new = place.nfs.create(&place.root, b"file", CreateHow::Unchecked(set)).done();
        assert_made(place, b"file", &before, &new);
        let attr = new.attributes.expect("attributes");
        assert_eq!((attr.mode, attr.uid, attr.gid, attr.size), (0o640, 1000, 100, 0));
        let file = new.handle();
        place.nfs.write(&file, 0, b"12345", StableHow::FileSync).done();
        let again = place.nfs.create(&place.root, b"file", CreateHow::Unchecked(mode(0o644))).done();
        assert_eq!((again.handle(), place.attr(&file).size), (file, 5), "what is there stays");
        let cut = Sattr3 { size: Some(0), ..Sattr3::default() };
        let again = place.nfs.create(&place.root, b"file", CreateHow::Unchecked(cut)).done();
        assert_eq!((again.handle(), place.attr(&file).size), (file, 0), "as open with O_TRUNC does");
    });
}

#[test]
fn create_guarded_refuses_a_name_that_is_taken() {
    on_each(|place| {
        let before = place.attr(&place.root);
        let how = CreateHow::Guarded(mode(0o600));
        let new = place.nfs.create(&place.root, b"file", how).done();
        assert_made(place, b"file", &before, &new);
        assert_eq!(new.attributes.expect("attributes").mode, 0o600);
        assert_refused(place, place.nfs.create(&place.root, b"file", how), Status::Exist);
        place.nfs.symlink(&place.root, b"link", b"nowhere", mode(0o777)).done();
        assert_refused(place, place.nfs.create(&place.root, b"link", how), Status::Exist);
        place.nfs.lookup(&place.root, b"nowhere").failed(Status::NoEnt);
    });
}

#[test]
fn an_exclusive_create_is_idempotent_with_its_verifier_and_exists_with_another() {
    on_each(|place| {
        let before = place.attr(&place.root);
        let new = place.nfs.create(&place.root, b"file", MINE).done();
        assert_made(place, b"file", &before, &new);
        // Sent again, as another request: the answer to the first was lost.
        let again = place.nfs.create(&place.root, b"file", MINE).done();
        assert_eq!(again.handle(), new.handle());
        for other in [THEIRS, NEXT] {
            assert_refused(place, place.nfs.create(&place.root, b"file", other), Status::Exist);
        }
        // What the client does next; then it is a file like any other.
        place.nfs.setattr(&new.handle(), mode(0o644), None).done();
        assert_eq!(place.attr(&new.handle()).mode, 0o644);
        place.file("plain", b"");
        assert_refused(place, place.nfs.create(&place.root, b"plain", MINE), Status::Exist);
    });
}

#[test]
fn create_over_a_directory_is_refused() {
    on_each(|place| {
        place.dir("dir");
        for how in [CreateHow::Unchecked(mode(0o644)), CreateHow::Guarded(mode(0o644)), MINE] {
            assert_refused(place, place.nfs.create(&place.root, b"dir", how), Status::Exist);
        }
        let file = place.file("file", b"");
        place.nfs.create(&file, b"inner", MINE).failed(Status::NotDir);
    });
}

#[test]
fn mkdir_makes_a_directory_with_its_attributes() {
    on_each(|place| {
        let before = place.attr(&place.root);
        let set = Sattr3 { mode: Some(0o1775), uid: Some(1000), gid: Some(100), ..Sattr3::default() };
        let new = place.nfs.mkdir(&place.root, b"dir", set).done();
        assert_made(place, b"dir", &before, &new);
        let attr = new.attributes.expect("attributes");
        assert_eq!((attr.file_type, attr.mode), (FileType3::Directory, 0o1775));
        assert_eq!((attr.uid, attr.gid), (1000, 100));
        assert_refused(place, place.nfs.mkdir(&place.root, b"dir", set), Status::Exist);
        place.file("file", b"");
        assert_refused(place, place.nfs.mkdir(&place.root, b"file", set), Status::Exist);
    });
}

#[test]
fn symlink_makes_a_link_to_anything() {
    on_each(|place| {
        let before = place.attr(&place.root);
        let new = place.nfs.symlink(&place.root, b"link", b"no/such/thing", mode(0o777)).done();
        assert_made(place, b"link", &before, &new);
        let attr = new.attributes.expect("attributes");
        assert_eq!((attr.file_type, attr.size), (FileType3::Symlink, 13));
        let again = place.nfs.symlink(&place.root, b"link", b"x", mode(0o777));
        assert_refused(place, again, Status::Exist);
        let owner = Sattr3 { uid: Some(1000), ..Sattr3::default() };
        let new = place.nfs.symlink(&place.root, b"theirs", b"x", owner).done();
        assert_eq!(new.attributes.expect("attributes").uid, 1000);
    });
}

#[test]
fn mknod_makes_fifos_sockets_and_devices() {
    on_each(|place| {
        let device = SpecData3 { major: 259, minor: 70_000 };
        let none = SpecData3 { major: 0, minor: 0 };
        for (name, what, file_type, rdev) in [
            (&b"fifo"[..], MknodWhat::Fifo(mode(0o640)), FileType3::Fifo, none),
            (b"socket", MknodWhat::Socket(mode(0o640)), FileType3::Socket, none),
            (b"char", MknodWhat::CharDevice(mode(0o640), device), FileType3::CharDevice, device),
            (b"block", MknodWhat::BlockDevice(mode(0o640), device), FileType3::BlockDevice, device),
        ] {
            let before = place.attr(&place.root);
            let new = place.nfs.mknod(&place.root, name, what).done();
            assert_made(place, name, &before, &new);
            let attr = new.attributes.expect("attributes");
            assert_eq!((attr.file_type, attr.mode, attr.rdev), (file_type, 0o640, rdev));
            assert_refused(place, place.nfs.mknod(&place.root, name, what), Status::Exist);
        }
    });
}

#[test]
fn mknod_of_what_it_does_not_make_is_a_bad_type() {
    on_each(|place| {
        for file_type in [FileType3::Regular, FileType3::Directory, FileType3::Symlink] {
            let reply = place.nfs.mknod(&place.root, b"node", MknodWhat::Other(file_type));
            assert_refused(place, reply, Status::BadType);
        }
        assert_eq!(place.names(), Vec::<String>::new());
    });
}

#[test]
fn mknod_of_a_device_is_the_superusers() {
    on_each(|place| {
        place.nfs.setattr(&place.root, mode(0o777), None).done();
        let (user, device) = (place.as_user(1000), SpecData3 { major: 1, minor: 3 });
        let what = MknodWhat::CharDevice(mode(0o666), device);
        assert_refused(place, user.mknod(&place.root, b"null", what), Status::Perm);
        let what = MknodWhat::BlockDevice(mode(0o666), device);
        assert_refused(place, user.mknod(&place.root, b"disk", what), Status::Perm);
        user.mknod(&place.root, b"fifo", MknodWhat::Fifo(mode(0o666))).done();
    });
}

#[test]
fn link_gives_a_file_one_more_name() {
    on_each(|place| {
        let (file, dir) = (place.file("file", b"shared"), place.dir("dir"));
        let before = place.attr(&dir);
        let ok = place.nfs.link(&file, &dir, b"again").done();
        assert_around(place, &dir, &before, &ok.dir_wcc);
        let attr = ok.attributes.expect("attributes");
        assert_eq!((attr.nlink, Some(attr)), (2, Some(place.attr(&file))));
        assert_eq!(place.nfs.lookup(&dir, b"again").done().handle, file);
        let failed = place.nfs.link(&file, &dir, b"again").failed(Status::Exist);
        assert_eq!(failed.attributes, Some(place.attr(&file)));
        assert_unchanged(place, &dir, &failed.dir_wcc);
    });
}

#[test]
fn link_of_a_directory_is_refused() {
    on_each(|place| {
        let dir = place.dir("dir");
        match place.nfs.link(&dir, &place.root, b"again") {
            Reply::Ok(_) => panic!("a directory has two names"),
            // POSIX says the one, RFC 1813 §3.3.15 lists the other.
            Reply::Failed(status, _) => assert_one_of(&status, &[Status::Perm, Status::IsDir]),
        }
        let file = place.file("file", b"");
        place.nfs.link(&file, &file, b"inner").failed(Status::NotDir);
    });
}
