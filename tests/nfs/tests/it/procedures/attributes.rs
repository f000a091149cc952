//! NULL, GETATTR, SETATTR, ACCESS.

use std::os::unix::fs::MetadataExt;
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tombolo_nfs_tests::client::{Caller, Expect, Transport, mode};
use tombolo_nfs_tests::fixture::{Fixture, assert_around, assert_unchanged, on_each};
use tombolo_nfs_tests::test_server::{Plan, TestServer};
use tombolo_wire_nfs3::args::AccessBits;
use tombolo_wire_nfs3::{FileType3, NfsTime3, Sattr3, SetTime3, Status};

/// Sleeps for longer than the timestamp granularity of any file system in use.
fn pause() {
    sleep(Duration::from_millis(20));
}

#[test]
fn null_answers_nothing_over_tcp_and_udp() {
    let server: TestServer = Plan::empty().start();
    server.nfs_over(Transport::Tcp).null();
    server.nfs_over(Transport::Udp).null();
}

on_each!(getattr_returns_all_attributes, |fixture| {
    let (file, dir) = (fixture.file("file", &[7; 5000]), fixture.dir("dir"));
    let (file, dir, root) = (fixture.attr(&file), fixture.attr(&dir), fixture.attr(&fixture.root));
    assert_eq!((file.file_type, file.mode, file.nlink), (FileType3::Regular, 0o644, 1));
    assert_eq!((file.size, file.uid, file.gid), (5000, 0, 0));
    assert!(file.used >= 4096, "space is told in bytes: {}", file.used);
    assert_eq!((dir.file_type, dir.mode), (FileType3::Directory, 0o755));
    assert_eq!((file.fsid, dir.fsid), (root.fsid, root.fsid), "one file system");
    assert!(file.fileid != dir.fileid && dir.fileid != root.fileid);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    assert!(now.abs_diff(file.mtime.seconds.into()) < 60, "written just now");
});

#[test]
fn getattr_matches_the_host() {
    let fixture = Fixture::on_host();
    let told = fixture.attr(&fixture.file("file", b"12345"));
    let host = fixture.on_disk("file").expect("on the host").metadata().expect("metadata");
    assert_eq!((told.fileid, told.size, told.used), (host.ino(), host.size(), host.blocks() * 512));
    let time = NfsTime3 { seconds: host.ctime() as u32, nseconds: host.ctime_nsec() as u32 };
    assert_eq!(told.ctime, time);
}

on_each!(setattr_changes_the_requested_attributes_and_returns_wcc, |fixture| {
    let file = fixture.file("file", b"12345");
    let before = fixture.attr(&file);
    pause();
    let wcc = fixture.nfs.setattr(&file, mode(0o600), None).done();
    assert_around(fixture, &file, &before, &wcc);
    let after = fixture.attr(&file);
    assert_eq!((after.mode, after.size, after.mtime), (0o600, 5, before.mtime));
    assert!(after.ctime != before.ctime);
    let owners = Sattr3 { uid: Some(1000), gid: Some(100), ..Sattr3::default() };
    fixture.nfs.setattr(&file, owners, None).done();
    let after = fixture.attr(&file);
    assert_eq!((after.uid, after.gid, after.mode), (1000, 100, 0o600));
});

on_each!(setattr_of_a_size_cuts_and_extends, |fixture| {
    let file = fixture.file("file", b"0123456789");
    let size = |size| Sattr3 { size: Some(size), ..Sattr3::default() };
    let before = fixture.attr(&file);
    let wcc = fixture.nfs.setattr(&file, size(4), None).done();
    assert_around(fixture, &file, &before, &wcc);
    fixture.nfs.setattr(&file, size(6), None).done();
    assert_eq!(fixture.contents(&file), b"0123\0\0");
    let wcc = fixture.nfs.setattr(&fixture.root, size(0), None).failed(Status::IsDir);
    assert_unchanged(fixture, &fixture.root, &wcc);
});

#[test]
fn write_permission_allows_truncation_as_linux_sends_it() {
    let fixture = Fixture::on_host();
    let (open, closed) = (fixture.file("open", b"12345"), fixture.file("closed", b"12345"));
    fixture.nfs.setattr(&open, mode(0o666), None).done();
    let user = fixture.nfs.as_caller(Caller::user(1000));
    // O_TRUNC: the server's time, which only the owner may set alone.
    let cut = Sattr3 { size: Some(0), mtime: SetTime3::Server, ..Sattr3::default() };
    user.setattr(&open, cut, None).done();
    assert_eq!(fixture.contents(&open), b"");
    user.setattr(&closed, cut, None).failed(Status::Acces);
    assert_eq!(fixture.contents(&closed), b"12345");
}

on_each!(setattr_with_failed_guard_changes_nothing, |fixture| {
    let file = fixture.file("file", b"12345");
    let ctime = fixture.attr(&file).ctime;
    let set = Sattr3 { size: Some(0), mode: Some(0), ..Sattr3::default() };
    let wrong = NfsTime3 { seconds: ctime.seconds - 1, ..ctime };
    let wcc = fixture.nfs.setattr(&file, set, Some(wrong)).failed(Status::NotSync);
    assert_unchanged(fixture, &file, &wcc);
    assert_eq!(fixture.contents(&file), b"12345");
    fixture.nfs.setattr(&file, set, Some(ctime)).done();
    assert_eq!((fixture.attr(&file).size, fixture.attr(&file).mode), (0, 0));
});

on_each!(setattr_sets_client_and_server_times, |fixture| {
    let file = fixture.file("file", b"");
    let past = NfsTime3 { seconds: 1_000_000_000, nseconds: 123_456_789 };
    let set = Sattr3 { mtime: SetTime3::Client(past), ..Sattr3::default() };
    fixture.nfs.setattr(&file, set, None).done();
    assert_eq!(fixture.attr(&file).mtime, past);
    let set = Sattr3 { atime: SetTime3::Client(past), mtime: SetTime3::Server, ..Sattr3::default() };
    fixture.nfs.setattr(&file, set, None).done();
    let attr = fixture.attr(&file);
    assert_eq!(attr.atime, past);
    assert!(attr.ctime.seconds.abs_diff(attr.mtime.seconds) <= 1, "the server's present");
    let broken = NfsTime3 { seconds: 1, nseconds: 1_000_000_000 };
    let set = Sattr3 { mtime: SetTime3::Client(broken), ..Sattr3::default() };
    fixture.nfs.setattr(&file, set, None).failed(Status::Inval);
});

on_each!(truncation_by_another_user_drops_set_user_id, |fixture| {
    let file = fixture.file("file", b"12345");
    fixture.nfs.setattr(&file, mode(0o4777), None).done();
    let cut = Sattr3 { size: Some(1), ..Sattr3::default() };
    fixture.as_user(1000).setattr(&file, cut, None).done();
    assert_eq!(fixture.attr(&file).mode, 0o777);
});

on_each!(access_reports_the_users_permissions, |fixture| {
    let (file, dir) = (fixture.file("file", b""), fixture.dir("dir"));
    let owner = Sattr3 { uid: Some(1000), gid: Some(1000), mode: Some(0o750), ..Sattr3::default() };
    fixture.nfs.setattr(&file, owner, None).done();
    fixture.nfs.setattr(&dir, owner, None).done();
    let may = |uid, object| fixture.as_user(uid).access(object, AccessBits::all()).done();
    let all_of_a_file = AccessBits::READ | AccessBits::MODIFY | AccessBits::EXTEND | AccessBits::EXECUTE;
    let ok = may(1000, &file);
    assert_eq!(ok.access, all_of_a_file);
    assert_eq!(ok.attributes, Some(fixture.attr(&file)));
    assert_eq!(may(2000, &file).access, AccessBits::empty());
    assert_eq!(may(1000, &dir).access, AccessBits::all() - AccessBits::EXECUTE);
    assert_eq!(may(2000, &dir).access, AccessBits::empty());
    assert_eq!(may(0, &file).access, all_of_a_file);
    fixture.nfs.setattr(&file, mode(0o640), None).done();
    assert_eq!(may(0, &file).access, all_of_a_file - AccessBits::EXECUTE);
    let only = fixture.nfs.access(&file, AccessBits::READ).done().access;
    assert_eq!(only, AccessBits::READ, "no more than was asked about");
    let unknown = AccessBits::from_bits_retain(0xffff_ff00) | AccessBits::READ;
    assert_eq!(fixture.nfs.access(&file, unknown).done().access, AccessBits::READ);
});
