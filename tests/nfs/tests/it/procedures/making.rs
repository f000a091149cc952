//! CREATE, MKDIR, SYMLINK, MKNOD, LINK.

use tombolo_nfs_tests::client::{Expect, New, mode};
use tombolo_nfs_tests::fixture::{Fixture, assert_around, assert_one_of, assert_unchanged, on_each};
use tombolo_wire_nfs3::args::{CreateHow, MknodKind, StableHow};
use tombolo_wire_nfs3::{CreateVerifier, Fattr3, FileType3, Reply, Sattr3, SpecData3, Status, WccData};

const MINE: CreateHow = CreateHow::Exclusive(CreateVerifier(*b"\x01\xffmine\0\x7f"));
/// The next one that a client that counts would take.
const NEXT: CreateHow = CreateHow::Exclusive(CreateVerifier(*b"\x01\xffmine\0\x7e"));
const THEIRS: CreateHow = CreateHow::Exclusive(CreateVerifier(*b"theirs!!"));

/// Asserts that LOOKUP finds the new node and that the reply reports the directory's change.
#[track_caller]
fn assert_made(fixture: &Fixture, name: &[u8], before: &Fattr3, new: &New) {
    let found = fixture.nfs.lookup(&fixture.root, name).done();
    assert_eq!((new.handle, new.attributes), (Some(found.handle), found.attributes));
    assert_around(fixture, &fixture.root, before, &new.dir_wcc);
}

/// Asserts that the reply is `status` and that the root is unchanged.
#[track_caller]
fn assert_refused(fixture: &Fixture, reply: Reply<New, WccData>, status: Status) {
    let wcc = reply.failed(status);
    assert_unchanged(fixture, &fixture.root, &wcc);
}

on_each!(create_unchecked_creates_or_opens_existing_file, |fixture| {
    let before = fixture.attr(&fixture.root);
    let set = Sattr3 { mode: Some(0o640), uid: Some(1000), gid: Some(100), ..Sattr3::default() };
    let new = fixture.nfs.create(&fixture.root, b"file", CreateHow::Unchecked(set)).done();
    assert_made(fixture, b"file", &before, &new);
    let attr = new.attributes.expect("attributes");
    assert_eq!((attr.mode, attr.uid, attr.gid, attr.size), (0o640, 1000, 100, 0));
    let file = new.handle();
    fixture.nfs.write(&file, 0, b"12345", StableHow::FileSync).done();
    let again = fixture.nfs.create(&fixture.root, b"file", CreateHow::Unchecked(mode(0o644))).done();
    assert_eq!((again.handle(), fixture.attr(&file).size), (file, 5), "what is there stays");
    let cut = Sattr3 { size: Some(0), ..Sattr3::default() };
    let again = fixture.nfs.create(&fixture.root, b"file", CreateHow::Unchecked(cut)).done();
    assert_eq!((again.handle(), fixture.attr(&file).size), (file, 0), "as open with O_TRUNC does");
});

on_each!(create_guarded_refuses_a_name_that_is_taken, |fixture| {
    let before = fixture.attr(&fixture.root);
    let how = CreateHow::Guarded(mode(0o600));
    let new = fixture.nfs.create(&fixture.root, b"file", how).done();
    assert_made(fixture, b"file", &before, &new);
    assert_eq!(new.attributes.expect("attributes").mode, 0o600);
    assert_refused(fixture, fixture.nfs.create(&fixture.root, b"file", how), Status::Exist);
    fixture.nfs.symlink(&fixture.root, b"link", b"nowhere", mode(0o777)).done();
    assert_refused(fixture, fixture.nfs.create(&fixture.root, b"link", how), Status::Exist);
    fixture.nfs.lookup(&fixture.root, b"nowhere").failed(Status::NoEnt);
});

on_each!(exclusive_create_is_idempotent_with_its_verifier_only, |fixture| {
    let before = fixture.attr(&fixture.root);
    let new = fixture.nfs.create(&fixture.root, b"file", MINE).done();
    assert_made(fixture, b"file", &before, &new);
    // Sent again, as another request: the answer to the first was lost.
    let again = fixture.nfs.create(&fixture.root, b"file", MINE).done();
    assert_eq!(again.handle(), new.handle());
    for other in [THEIRS, NEXT] {
        assert_refused(fixture, fixture.nfs.create(&fixture.root, b"file", other), Status::Exist);
    }
    // A client's next call; afterwards it is an ordinary file.
    fixture.nfs.setattr(&new.handle(), mode(0o644), None).done();
    assert_eq!(fixture.attr(&new.handle()).mode, 0o644);
    fixture.file("plain", b"");
    assert_refused(fixture, fixture.nfs.create(&fixture.root, b"plain", MINE), Status::Exist);
});

on_each!(create_over_a_directory_is_refused, |fixture| {
    fixture.dir("dir");
    for how in [CreateHow::Unchecked(mode(0o644)), CreateHow::Guarded(mode(0o644)), MINE] {
        assert_refused(fixture, fixture.nfs.create(&fixture.root, b"dir", how), Status::Exist);
    }
    let file = fixture.file("file", b"");
    fixture.nfs.create(&file, b"inner", MINE).failed(Status::NotDir);
});

on_each!(mkdir_makes_a_directory_with_its_attributes, |fixture| {
    let before = fixture.attr(&fixture.root);
    let set = Sattr3 { mode: Some(0o1775), uid: Some(1000), gid: Some(100), ..Sattr3::default() };
    let new = fixture.nfs.mkdir(&fixture.root, b"dir", set).done();
    assert_made(fixture, b"dir", &before, &new);
    let attr = new.attributes.expect("attributes");
    assert_eq!((attr.file_type, attr.mode), (FileType3::Directory, 0o1775));
    assert_eq!((attr.uid, attr.gid), (1000, 100));
    assert_refused(fixture, fixture.nfs.mkdir(&fixture.root, b"dir", set), Status::Exist);
    fixture.file("file", b"");
    assert_refused(fixture, fixture.nfs.mkdir(&fixture.root, b"file", set), Status::Exist);
});

on_each!(symlink_makes_a_link_to_anything, |fixture| {
    let before = fixture.attr(&fixture.root);
    let new = fixture.nfs.symlink(&fixture.root, b"link", b"no/such/thing", mode(0o777)).done();
    assert_made(fixture, b"link", &before, &new);
    let attr = new.attributes.expect("attributes");
    assert_eq!((attr.file_type, attr.size), (FileType3::Symlink, 13));
    let again = fixture.nfs.symlink(&fixture.root, b"link", b"x", mode(0o777));
    assert_refused(fixture, again, Status::Exist);
    let owner = Sattr3 { uid: Some(1000), ..Sattr3::default() };
    let new = fixture.nfs.symlink(&fixture.root, b"theirs", b"x", owner).done();
    assert_eq!(new.attributes.expect("attributes").uid, 1000);
});

on_each!(mknod_makes_fifos_sockets_and_devices, |fixture| {
    let device = SpecData3 { major: 259, minor: 70_000 };
    let none = SpecData3 { major: 0, minor: 0 };
    for (name, what, file_type, rdev) in [
        (&b"fifo"[..], MknodKind::Fifo(mode(0o640)), FileType3::Fifo, none),
        (b"socket", MknodKind::Socket(mode(0o640)), FileType3::Socket, none),
        (b"char", MknodKind::CharDevice(mode(0o640), device), FileType3::CharDevice, device),
        (b"block", MknodKind::BlockDevice(mode(0o640), device), FileType3::BlockDevice, device),
    ] {
        let before = fixture.attr(&fixture.root);
        let new = fixture.nfs.mknod(&fixture.root, name, what).done();
        assert_made(fixture, name, &before, &new);
        let attr = new.attributes.expect("attributes");
        assert_eq!((attr.file_type, attr.mode, attr.rdev), (file_type, 0o640, rdev));
        assert_refused(fixture, fixture.nfs.mknod(&fixture.root, name, what), Status::Exist);
    }
});

on_each!(mknod_of_unsupported_type_is_bad_type, |fixture| {
    for file_type in [FileType3::Regular, FileType3::Directory, FileType3::Symlink] {
        let reply = fixture.nfs.mknod(&fixture.root, b"node", MknodKind::Other(file_type));
        assert_refused(fixture, reply, Status::BadType);
    }
    assert_eq!(fixture.names(), Vec::<String>::new());
});

on_each!(mknod_of_a_device_is_the_superusers, |fixture| {
    fixture.nfs.setattr(&fixture.root, mode(0o777), None).done();
    let (user, device) = (fixture.as_user(1000), SpecData3 { major: 1, minor: 3 });
    let what = MknodKind::CharDevice(mode(0o666), device);
    assert_refused(fixture, user.mknod(&fixture.root, b"null", what), Status::Perm);
    let what = MknodKind::BlockDevice(mode(0o666), device);
    assert_refused(fixture, user.mknod(&fixture.root, b"disk", what), Status::Perm);
    user.mknod(&fixture.root, b"fifo", MknodKind::Fifo(mode(0o666))).done();
});

on_each!(link_gives_a_file_one_more_name, |fixture| {
    let (file, dir) = (fixture.file("file", b"shared"), fixture.dir("dir"));
    let before = fixture.attr(&dir);
    let ok = fixture.nfs.link(&file, &dir, b"again").done();
    assert_around(fixture, &dir, &before, &ok.dir_wcc);
    let attr = ok.attributes.expect("attributes");
    assert_eq!((attr.nlink, Some(attr)), (2, Some(fixture.attr(&file))));
    assert_eq!(fixture.nfs.lookup(&dir, b"again").done().handle, file);
    let failed = fixture.nfs.link(&file, &dir, b"again").failed(Status::Exist);
    assert_eq!(failed.attributes, Some(fixture.attr(&file)));
    assert_unchanged(fixture, &dir, &failed.dir_wcc);
});

on_each!(link_of_a_directory_is_refused, |fixture| {
    let dir = fixture.dir("dir");
    match fixture.nfs.link(&dir, &fixture.root, b"again") {
        Reply::Ok(_) => panic!("a directory has two names"),
        // EPERM is POSIX's error, EISDIR is RFC 1813's (§3.3.15).
        Reply::Failed(status, _) => assert_one_of(&status, &[Status::Perm, Status::IsDir]),
    }
    let file = fixture.file("file", b"");
    fixture.nfs.link(&file, &file, b"inner").failed(Status::NotDir);
});
