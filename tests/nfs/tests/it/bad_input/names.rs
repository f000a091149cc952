//! Invalid names.

use tombolo_nfs_tests::client::{Expect, calls_with_names, changes_of_names, mode};
use tombolo_nfs_tests::fixture::{Fixture, assert_one_of, on_each};
use tombolo_wire_nfs3::{Call, Status};

use crate::bad_input::{assert_garbage, assert_well, send};

/// Asserts that every procedure refuses the name with one of `expected` and changes nothing.
#[track_caller]
fn assert_refused(fixture: &Fixture, name: &[u8], expected: &[Status]) {
    for call in calls_with_names(fixture.root.as_handle(), name) {
        match send(&fixture.nfs, &call).status() {
            Ok(()) => panic!("{call:?} succeeded"),
            // LINK of a directory may be refused for that first.
            Err(Status::IsDir | Status::Perm) if matches!(call, Call::Link(_)) => {}
            Err(status) => assert_one_of(&status, expected),
        }
    }
    assert_eq!(fixture.names(), ["a", "old"]);
}

fn fill_with_names(fixture: &Fixture) {
    fixture.dir("a");
    fixture.file("old", b"kept");
}

on_each!(a_name_of_256_bytes_is_too_long, |fixture| {
    fill_with_names(fixture);
    for len in [256, 1000, 4096] {
        assert_refused(fixture, &vec![b'x'; len], &[Status::NameTooLong]);
    }
    // Longer than any call but a WRITE has reason to be.
    for len in [10_000, 100_000, 1_000_000] {
        for call in calls_with_names(fixture.root.as_handle(), &vec![b'x'; len]) {
            assert_garbage(&send(&fixture.nfs, &call));
        }
    }
    let longest = [b'x'; 255];
    fixture.nfs.mkdir(&fixture.root, &longest, mode(0o755)).done();
    fixture.nfs.lookup(&fixture.root, &longest).done();
});

on_each!(invalid_names_are_refused_and_create_nothing, |fixture| {
    fill_with_names(fixture);
    let slashes = [&b"a/b"[..], b"/", b"/a", b"a/", b"b/", b"../a", b"a/../b", b"/etc/passwd"];
    let nuls = [&b"\0"[..], b"a\0", b"a\0b", b"b\0c", b"old\0"];
    for name in slashes.into_iter().chain(nuls) {
        assert_refused(fixture, name, &[Status::Inval]);
    }
    assert_refused(fixture, b"", &[Status::Inval, Status::NoEnt, Status::Acces]);
});

on_each!(dot_names_are_refused, |fixture| {
    fill_with_names(fixture);
    let dir = fixture.nfs.lookup(&fixture.root, b"a").done().handle;
    for name in [&b"."[..], b".."] {
        for (at, call) in [fixture.root, dir]
            .iter()
            .flat_map(|at| changes_of_names(at.as_handle(), name).into_iter().map(move |call| (at, call)))
        {
            // RFC 1813 §3.3.8 to §3.3.15: they exist; and §3.3.13, §3.3.14 have both.
            let expected = [Status::Exist, Status::Inval, Status::IsDir, Status::Perm, Status::NotEmpty];
            match send(&fixture.nfs, &call).status() {
                Ok(()) => panic!("{call:?} in {at:?} succeeded"),
                // The inner directory has no `old` to be moved.
                Err(Status::NoEnt) if matches!(call, Call::Rename(_)) => {}
                Err(status) => assert_one_of(&status, &expected),
            }
        }
    }
    assert_eq!(fixture.names(), ["a", "old"]);
});

on_each!(link_target_is_neither_overlong_nor_empty, |fixture| {
    let symlink = |target: &[u8]| fixture.nfs.symlink(&fixture.root, b"link", target, mode(0o777));
    for len in [4096, 6000] {
        let status = *symlink(&vec![b't'; len]).status().expect("refused");
        assert_one_of(&status, &[Status::NameTooLong, Status::Inval]);
    }
    for target in [&b""[..], b"a\0b", b"\0"] {
        let status = *symlink(target).status().expect("refused");
        assert_one_of(&status, &[Status::NoEnt, Status::Inval]);
    }
    assert_eq!(fixture.names(), Vec::<String>::new());
    assert_well(fixture);
});
