//! Invalid and foreign handles.

use std::sync::Arc;

use tombolo_back_memory::Memory;
use tombolo_nfs_tests::client::{Expect, Message, calls_on, fresh_xid, mode};
use tombolo_nfs_tests::fixture::{Fixture, assert_one_of, on_each};
use tombolo_nfs_tests::test_server::{Plan, no_squash};
use tombolo_wire_nfs3::args::LinkArgs;
use tombolo_wire_nfs3::{Call, FileHandle, FileHandleBuf, Status};

use crate::bad_input::{assert_garbage, assert_well, send};

fn handle(bytes: &[u8]) -> FileHandleBuf {
    FileHandle::new(bytes).expect("at most 64 bytes").to_owned()
}

/// Asserts that every procedure refuses the handle with `expected`.
#[track_caller]
fn assert_refused(fixture: &Fixture, bad: &FileHandleBuf, expected: Status) {
    for call in calls_on(bad.as_handle(), b"name") {
        assert_eq!(send(&fixture.nfs, &call).status(), Err(expected), "{bad:?}: {call:?}");
    }
    // The second handle of a LINK, too.
    let link = LinkArgs {
        file: fixture.root.as_handle(),
        link: tombolo_nfs_tests::client::dir_op_args(bad, b"name"),
    };
    assert_eq!(send(&fixture.nfs, &Call::Link(link)).status(), Err(expected));
}

on_each!(a_handle_of_no_bytes_is_bad, |fixture| {
    assert_refused(fixture, &handle(b""), Status::BadHandle);
    assert_well(fixture);
});

on_each!(a_truncated_handle_is_bad, |fixture| {
    let good = fixture.file("file", b"");
    let bytes = good.as_handle().as_bytes();
    for len in 0..bytes.len() {
        let cut = handle(&bytes[..len]);
        assert_eq!(fixture.nfs.getattr(&cut).status(), Some(&Status::BadHandle), "{len} bytes");
    }
    assert_refused(fixture, &handle(&bytes[..bytes.len() - 1]), Status::BadHandle);
    let longer = handle(&[bytes, &[0]].concat());
    assert_refused(fixture, &longer, Status::BadHandle);
    assert_eq!(fixture.nfs.getattr(&good).done().size, 0);
});

on_each!(an_over_long_handle_is_garbage, |fixture| {
    for len in [65_u32, 128, 4096, u32::MAX] {
        let mut arguments = len.to_be_bytes().to_vec();
        arguments.resize(4 + (len as usize).next_multiple_of(4).min(6000), 7);
        for call in calls_on(fixture.root.as_handle(), b"name") {
            let message = fixture.nfs.message(&call, b"").with_arguments(&arguments);
            assert_garbage(&fixture.nfs.send(&message));
        }
    }
    assert_well(fixture);
});

// Changes each bit of a signed handle.
on_each!(a_forged_handle_is_bad, |fixture| {
    let good = fixture.file("file", b"secret");
    let bytes = good.as_handle().as_bytes();
    for bit in 0..bytes.len() * 8 {
        let mut forged = bytes.to_vec();
        forged[bit / 8] ^= 1 << (bit % 8);
        let status = fixture.nfs.getattr(&handle(&forged)).status().copied();
        // With the export's number altered, the handle may name an export that has been removed.
        let expected = [Some(Status::BadHandle), Some(Status::Stale)];
        assert!(expected.contains(&status), "bit {bit}: {status:?}");
    }
    let mut forged = bytes.to_vec();
    *forged.last_mut().expect("bytes") ^= 1;
    assert_refused(fixture, &handle(&forged), Status::BadHandle);
    for made_up in [[0; 32], [0xff; 32], [1; 32]] {
        let status = fixture.nfs.getattr(&handle(&made_up)).status().copied();
        assert!([Some(Status::BadHandle), Some(Status::Stale)].contains(&status), "{status:?}");
    }
    assert_well(fixture);
});

/// Combines a file's handle with the other export's number.
#[test]
fn a_handle_is_of_its_own_export_only() {
    let fixture = Fixture::of_two();
    let other = fixture.nfs.root("/other");
    let mine = fixture.file("file", b"secret");
    let mut mixed = mine.as_handle().as_bytes().to_vec();
    let theirs = other.as_handle().as_bytes();
    // All bytes in which the two roots may differ, up to the signature (`docs/formats/handles.md`).
    mixed[..6].copy_from_slice(&theirs[..6]);
    assert_refused(&fixture, &handle(&mixed), Status::BadHandle);
    assert_ne!(fixture.root, other);
}

#[test]
fn a_handle_of_a_removed_export_is_stale() {
    let memory: Arc<Memory> = Arc::default();
    let plan = Plan::over(memory.clone());
    let keys = plan.keys.clone();
    let before = Fixture::new(plan.and("/other", memory.clone(), no_squash()), None);
    let other = before.nfs.root("/other");
    drop(before);
    let after = Fixture::new(Plan { keys, ..Plan::over(memory) }, None);
    assert_refused(&after, &other, Status::Stale);
}

#[test]
fn a_handle_of_another_server_is_bad() {
    let memory: Arc<Memory> = Arc::default();
    let [one, other] = [(); 2].map(|()| Fixture::new(Plan::over(memory.clone()), None));
    let file = one.file("file", b"secret");
    assert_refused(&other, &file, Status::BadHandle);
}

#[test]
fn links_and_renames_do_not_cross_exports() {
    let fixture = Fixture::of_two();
    let other = fixture.nfs.root("/other");
    let file = fixture.file("file", b"");
    let failed = fixture.nfs.link(&file, &other, b"name").failed(Status::XDev);
    assert_eq!(failed.dir_wcc.after, Some(fixture.attr(&other)));
    let failed = fixture.nfs.rename(&fixture.root, b"file", &other, b"name").failed(Status::XDev);
    assert_eq!(failed.from_dir.after, Some(fixture.attr(&fixture.root)));
    assert_eq!(failed.to_dir.after, Some(fixture.attr(&other)));
    assert_eq!(fixture.names(), ["file"]);
}

on_each!(a_handle_whose_file_is_gone_is_stale, |fixture| {
    let (file, dir) = (fixture.file("file", b"x"), fixture.dir("dir"));
    fixture.nfs.remove(&fixture.root, b"file").done();
    fixture.nfs.rmdir(&fixture.root, b"dir").done();
    // Another node may get the number of the old one: it is not the old one.
    fixture.file("file", b"new");
    fixture.nfs.mkdir(&fixture.root, b"dir", mode(0o755)).done();
    assert_refused(fixture, &file, Status::Stale);
    // A directory that was removed has no names in it; either answer is true.
    for call in calls_on(dir.as_handle(), b"name") {
        assert_one_of(&send(&fixture.nfs, &call).status(), &[Err(Status::Stale), Err(Status::NoEnt)]);
    }
    assert_refused(fixture, &dir, Status::Stale);
});

// Sends MOUNT paths of excessive length; no handle may be returned.
on_each!(overlong_mount_path_is_garbage, |fixture| {
    let program = tombolo_wire_nfs3::mount::PROGRAM;
    for len in [1025_u32, 4096, u32::MAX] {
        let mut arguments = len.to_be_bytes().to_vec();
        arguments.resize(4 + (len as usize).next_multiple_of(4).min(6000), b'x');
        for procedure in [1, 3] {
            let message = Message::new(fresh_xid(), program, 3, procedure, fixture.nfs.caller());
            assert_garbage(&fixture.nfs.send(&message.with_arguments(&arguments)));
        }
    }
});
