//! Callers' identities and permissions.

use std::fs;
use std::sync::Arc;

use tombolo_back_memory::Memory;
use tombolo_front_nfs_server::{Groups, Squash, SquashMode};
use tombolo_nfs_tests::client::{Caller, Expect, Nfs, mode};
use tombolo_nfs_tests::fixture::{Fixture, on_each};
use tombolo_nfs_tests::test_server::Plan;
use tombolo_wire_nfs3::args::{AccessBits, CreateHow, StableHow};
use tombolo_wire_nfs3::{FileHandleBuf, Reply, Sattr3, Status};

/// Makes a file with this owner, group and mode.
#[track_caller]
fn owned(fixture: &Fixture, name: &str, uid: u32, gid: u32, bits: u32) -> FileHandleBuf {
    let file = fixture.file(name, b"secret");
    let set = Sattr3 { mode: Some(bits), uid: Some(uid), gid: Some(gid), ..Sattr3::default() };
    fixture.nfs.setattr(&file, set, None).done();
    file
}

/// Returns whether a client may read and whether it may write.
fn may(nfs: &Nfs, file: &FileHandleBuf) -> (bool, bool) {
    let granted = |status: Option<&Status>| match status {
        None => true,
        Some(Status::Acces) => false,
        Some(status) => panic!("{status:?}"),
    };
    let read = nfs.read(file, 0, 10);
    let written = nfs.write(file, 0, b"secret", StableHow::Unstable);
    (granted(read.status()), granted(written.status()))
}

on_each!(a_user_does_not_read_roots_private_file, |fixture| {
    let file = owned(fixture, "file", 0, 0, 0o600);
    let user = fixture.as_user(1000);
    assert_eq!(may(&user, &file), (false, false));
    let failed = user.read(&file, 0, 10).failed(Status::Acces);
    assert_eq!(failed.expect("attributes").size, 6);
    assert_eq!(user.access(&file, AccessBits::all()).done().access, AccessBits::empty());
    assert_eq!(may(&fixture.nfs, &file), (true, true));
    // In a directory that only root searches, not even a name is found.
    let dir = fixture.nfs.mkdir(&fixture.root, b"private", mode(0o700)).done().handle();
    fixture.file_in(&dir, "inner", b"");
    user.lookup(&dir, b"inner").failed(Status::Acces);
    user.lookup(&dir, b"nothing").failed(Status::Acces);
});

on_each!(the_mode_decides_for_owner_group_and_others, |fixture| {
    let file = owned(fixture, "file", 1000, 1000, 0o640);
    let group = fixture.nfs.as_caller(Caller::with_groups(2000, 1000, &[]));
    assert_eq!(may(&fixture.as_user(1000), &file), (true, true));
    assert_eq!(may(&group, &file), (true, false));
    assert_eq!(may(&fixture.as_user(3000), &file), (false, false));
    // Effective at once, despite cached permissions.
    fixture.nfs.setattr(&file, mode(0o606), None).done();
    assert_eq!(may(&group, &file), (false, false));
    assert_eq!(may(&fixture.as_user(3000), &file), (true, true));
});

// Tests RFC 1813 §4.4: the owner may have opened the file before its mode was changed.
on_each!(owner_reads_and_writes_despite_the_mode, |fixture| {
    let file = owned(fixture, "file", 1000, 1000, 0);
    assert_eq!(may(&fixture.as_user(1000), &file), (true, true));
    assert_eq!(may(&fixture.as_user(2000), &file), (false, false));
    let cut = Sattr3 { size: Some(3), ..Sattr3::default() };
    fixture.as_user(1000).setattr(&file, cut, None).done();
    // ACCESS, which a client calls upon open, reports the mode's permissions.
    let access = fixture.as_user(1000).access(&file, AccessBits::all()).done().access;
    assert_eq!(access, AccessBits::empty());
});

// Tests RFC 1813 §4.4: a client's kernel pages a program in by READ.
on_each!(execute_permission_allows_reading, |fixture| {
    let file = owned(fixture, "file", 0, 0, 0o711);
    assert_eq!(may(&fixture.as_user(1000), &file), (true, false));
});

on_each!(all_sixteen_groups_count, |fixture| {
    let file = owned(fixture, "file", 0, 5016, 0o660);
    let groups: Vec<u32> = (5001..=5016).collect();
    let sixteen = fixture.nfs.as_caller(Caller::with_groups(1000, 1000, &groups));
    assert_eq!(may(&sixteen, &file), (true, true));
    let fifteen = fixture.nfs.as_caller(Caller::with_groups(1000, 1000, &groups[..15]));
    assert_eq!(may(&fifteen, &file), (false, false));
});

on_each!(auth_none_callers_are_anonymous, |fixture| {
    let anonymous = fixture.nfs.as_caller(Caller::Anonymous);
    assert_eq!(may(&anonymous, &owned(fixture, "private", 0, 0, 0o600)), (false, false));
    assert_eq!(may(&anonymous, &owned(fixture, "theirs", 65_534, 65_534, 0o600)), (true, true));
    let dir = fixture.nfs.mkdir(&fixture.root, b"open", mode(0o777)).done().handle();
    let new = anonymous.create(&dir, b"file", CreateHow::Guarded(mode(0o644))).done();
    let attr = new.attributes.expect("attributes");
    assert_eq!((attr.uid, attr.gid), (65_534, 65_534));
});

/// Starts a server that squashes callers, with files of root, of user 1000, and of nobody.
fn squashed(squash: Squash) -> (Fixture, [FileHandleBuf; 3]) {
    let memory: Arc<Memory> = Arc::default();
    let plan = Plan::over(memory.clone());
    let keys = plan.keys.clone();
    let before = Fixture::new(plan, None);
    let files = [("root", 0), ("user", 1000), ("anonymous", squash.anonymous_uid)]
        .map(|(name, uid)| owned(&before, name, uid, uid, 0o600));
    before.nfs.setattr(&before.root, mode(0o777), None).done();
    (Fixture::new(Plan { keys, ..Plan::over(memory).squashing(squash) }, None), files)
}

/// Returns the owner of a file that this client creates.
fn owner_of_new(nfs: &Nfs, root: &FileHandleBuf, name: &str) -> (u32, u32) {
    let new = nfs.create(root, name.as_bytes(), CreateHow::Guarded(mode(0o644))).done();
    let attr = new.attributes.expect("attributes");
    (attr.uid, attr.gid)
}

#[test]
fn root_squash_maps_root_alone() {
    let (fixture, [root, user, nobody]) = squashed(Squash::default());
    assert_eq!(may(&fixture.nfs, &root), (false, false));
    assert_eq!(may(&fixture.nfs, &nobody), (true, true));
    assert_eq!(may(&fixture.nfs, &user), (false, false));
    assert_eq!(may(&fixture.as_user(1000), &user), (true, true));
    assert_eq!(owner_of_new(&fixture.nfs, &fixture.root, "by-root"), (65_534, 65_534));
    assert_eq!(owner_of_new(&fixture.as_user(1000), &fixture.root, "by-user"), (1000, 1000));
    fixture.nfs.setattr(&user, mode(0o666), None).failed(Status::Perm);
    let away = Sattr3 { uid: Some(0), ..Sattr3::default() };
    fixture.nfs.setattr(&nobody, away, None).failed(Status::Perm);
}

#[test]
fn the_invalid_user_id_is_the_anonymous_user() {
    for mode in [SquashMode::None, SquashMode::Root] {
        let (fixture, [root, ..]) = squashed(Squash { mode, ..Squash::default() });
        let none = Caller::with_groups(u32::MAX, u32::MAX, &[u32::MAX]);
        let nfs = fixture.nfs.as_caller(none);
        assert_eq!(may(&nfs, &root), (false, false));
        assert_eq!(owner_of_new(&nfs, &fixture.root, "by-none"), (65_534, 65_534));
    }
}

#[test]
fn a_squashed_root_creates_as_the_anonymous_user() {
    let (fixture, _) = squashed(Squash::default());
    let claims = Sattr3 { uid: Some(0), gid: Some(0), ..mode(0o644) };
    let new = fixture.nfs.create(&fixture.root, b"file", CreateHow::Guarded(claims)).done();
    let attr = new.attributes.expect("attributes");
    assert_eq!((attr.uid, attr.gid), (65_534, 65_534));
}

#[test]
fn a_squashed_root_is_not_in_roots_group_either() {
    let (fixture, _) = squashed(Squash::default());
    let (plain, file) = (Caller::with_groups(1000, 0, &[0]), fixture.file("file", b"secret"));
    let group_of_root = Sattr3 { mode: Some(0o660), ..Sattr3::default() };
    fixture.nfs.setattr(&file, group_of_root, None).done();
    assert_eq!(owner_of_new(&fixture.nfs.as_caller(plain), &fixture.root, "new"), (1000, 65_534));
}

#[test]
fn all_squashed_are_one_user() {
    let squash = Squash { mode: SquashMode::All, anonymous_uid: 4000, anonymous_gid: 4001 };
    let (fixture, [root, user, anonymous]) = squashed(squash);
    for caller in [Caller::ROOT, Caller::user(1000), Caller::with_groups(0, 0, &[0, 1000]), Caller::Anonymous]
    {
        let nfs = fixture.nfs.as_caller(caller.clone());
        assert_eq!(may(&nfs, &root), (false, false), "{caller:?}");
        assert_eq!(may(&nfs, &user), (false, false), "{caller:?}");
        assert_eq!(may(&nfs, &anonymous), (true, true), "{caller:?}");
    }
    assert_eq!(owner_of_new(&fixture.as_user(1000), &fixture.root, "new"), (4000, 4001));
}

/// Returns a user of this machine other than the superuser, and its group.
fn local_user() -> (u32, u32) {
    let users = fs::read_to_string("/etc/passwd").expect("the user database");
    let parse = |line: &str| {
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    users.lines().filter_map(parse).find(|&(uid, gid)| uid != 0 && gid != 0).expect("a user")
}

#[test]
fn looked_up_groups_replace_those_of_the_credential() {
    let (uid, gid) = local_user();
    let memory = Arc::new(Memory::default());
    let fixture = Fixture::new(Plan { groups: Some(Groups::new()), ..Plan::over(memory) }, None);
    let file = owned(&fixture, "file", 0, gid, 0o660);
    let told = fixture.nfs.as_caller(Caller::with_groups(uid, 77_777, &[]));
    assert_eq!(may(&told, &file), (true, true), "user {uid} is of group {gid}");
    let other = owned(&fixture, "other", 0, 66_666, 0o660);
    let claimed = fixture.nfs.as_caller(Caller::with_groups(uid, 77_777, &[66_666]));
    assert_eq!(may(&claimed, &other), (false, false), "user {uid} is not of group 66666");
    // Without look-up the credential's groups apply.
    let fixture = Fixture::in_memory();
    let file = owned(&fixture, "file", 0, gid, 0o660);
    assert_eq!(may(&fixture.nfs.as_caller(Caller::with_groups(uid, 77_777, &[])), &file), (false, false));
}

on_each!(a_sticky_directory_protects_its_entries, |fixture| {
    let dir = fixture.nfs.mkdir(&fixture.root, b"dir", mode(0o1777)).done().handle();
    let (one, other) = (fixture.as_user(1000), fixture.as_user(2000));
    one.create(&dir, b"file", CreateHow::Guarded(mode(0o666))).done();
    for reply in [other.remove(&dir, b"file").status(), other.rename(&dir, b"file", &dir, b"x").status()] {
        assert!(matches!(reply, Some(Status::Perm | Status::Acces)), "{reply:?}");
    }
    match one.remove(&dir, b"file") {
        Reply::Ok(_) => {}
        Reply::Failed(status, _) => panic!("one's own file: {status:?}"),
    }
});
