//! Ownership of new files, and permission checks, per thread.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use crate::common::{World, serve_checked};
use tombolo_back_local_dir::Options;
use tombolo_core::fs::{
    AllocateMode, Create, Exclusive, File, Mode, NewMode, OpenFlags, PermissionCheck, SetAttr,
};
use tombolo_core::{Error, Result};
use tombolo_test_support::{Session, mode, plain};

fn exclusive(mode: NewMode) -> Create {
    Create { mode, exclusive: Exclusive::Yes, ..plain() }
}

fn served(check: PermissionCheck) -> (tempfile::TempDir, World) {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let world = serve_checked(dir.path(), Options::default(), check);
    (dir, world)
}

#[test]
fn caller_checks_skip_kernel_checks_but_set_owner() {
    let (dir, world) = served(PermissionCheck::Caller);
    let user = world.user(1000, 100, &[7]);
    // The directory is root's and closed to others; the caller's kernel has decided otherwise.
    user.create("file", &exclusive(mode(0o640))).unwrap();
    user.mkdir_mode("dir", 0o750).unwrap();
    user.symlink("link", b"x").unwrap();
    for text in ["file", "dir", "link"] {
        let meta = fs::symlink_metadata(dir.path().join(text)).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (1000, 100), "{text}");
    }
    user.unlink("file").unwrap();
}

#[test]
fn back_end_checks_use_kernel_for_each_user() {
    let (dir, world) = served(PermissionCheck::BackEnd);
    let user = world.user(1000, 100, &[7]);
    assert!(matches!(user.create("file", &exclusive(mode(0o640))), Err(Error::AccessDenied)));
    fs::create_dir(dir.path().join("group")).unwrap();
    std::os::unix::fs::chown(dir.path().join("group"), Some(0), Some(7)).unwrap();
    fs::set_permissions(dir.path().join("group"), fs::Permissions::from_mode(0o2770)).unwrap();
    let group = world.lookup("group").unwrap().node;
    let created = user.create((group, "file"), &exclusive(mode(0o640))).unwrap();
    assert_eq!(
        (created.entry.attr.uid, created.entry.attr.gid),
        (1000, 7),
        "the directory hands its group on"
    );
    let stranger = world.user(1001, 100, &[]);
    assert!(matches!(stranger.lookup((group, "file")), Err(Error::AccessDenied)));

    // A write by another user clears the bits without being told to.
    world.chmod(created.entry.node, 0o4666).unwrap();
    let file = File { node: created.entry.node, open: created.open };
    user.write(file, 0, b"x").unwrap();
    let attr = world.attr(file.node);
    assert_eq!(attr.mode, Mode::new(0o666));
}

/// Checks that all changes of a file's data clear set-user-id, unless made by the superuser.
#[test]
fn every_change_by_others_drops_set_user_id() {
    let (dir, world) = served(PermissionCheck::BackEnd);
    let path = dir.path().join("file");
    fs::write(&path, b"text").unwrap();
    let (node, file) = (world.node("file").unwrap(), world.writer("file"));
    let size = SetAttr { size: Some(3), ..SetAttr::default() };
    type Way<'a> = (&'a str, &'a dyn Fn(&Session) -> Result<()>);
    let ways: [Way<'_>; 6] = [
        ("write", &|by| by.write(file, 0, b"x").map(drop)),
        ("truncate", &|by| by.truncate(node, 3).map(drop)),
        ("truncate what is open", &|by| by.fs.setattr(&by.cx, node, Some(file), &size).wait().map(drop)),
        ("allocate", &|by| by.ranges().allocate(&by.cx, file, 0, 8192, AllocateMode::empty()).wait()),
        ("copy", &|by| by.ranges().copy(&by.cx, file, 0, file, 4096, 2).wait().map(drop)),
        ("open to truncate", &|by| by.open(node, OpenFlags::WRITE | OpenFlags::TRUNCATE).map(drop)),
    ];
    for (what, change) in ways {
        for (by, after) in [(world.session.clone(), 0o4777), (world.user(1000, 1000, &[]), 0o777)] {
            fs::write(&path, b"text").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o4777)).unwrap();
            change(&by).unwrap();
            let mode = fs::metadata(&path).unwrap().mode() & 0o7777;
            assert_eq!(mode, after, "{what} by user {}: {mode:o}", by.cx.identity.uid);
        }
    }
}

/// Checks that a trusted guest and an untrusted client can share an export.
#[test]
fn each_session_has_its_own_permission_check() {
    let (dir, trusted) = served(PermissionCheck::Caller);
    let stranger = World::attach(trusted.export.clone(), PermissionCheck::BackEnd);
    assert_eq!(trusted.fs.profile().permission_check, PermissionCheck::Caller);
    assert_eq!(stranger.fs.profile().permission_check, PermissionCheck::BackEnd);
    fs::write(dir.path().join("secret"), b"").unwrap();
    fs::set_permissions(dir.path().join("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    let open = |world: &World| {
        let node = world.node("secret").unwrap();
        world.user(1000, 1000, &[]).open(node, OpenFlags::READ)
    };
    assert!(open(&trusted).is_ok());
    assert!(matches!(open(&stranger), Err(Error::AccessDenied)));
}

/// Credentials and umask belong to the thread that serves the request only.
#[test]
fn users_served_at_once_do_not_mix() {
    let (dir, world) = served(PermissionCheck::Caller);
    std::thread::scope(|scope| {
        for user in 1..=4_u32 {
            let (world, dir) = (&world, &dir);
            scope.spawn(move || {
                let by = world.user(1000 + user, 2000 + user, &[3000 + user]);
                let umask = Mode::new(0o7 * user);
                for n in 0..500 {
                    let text = format!("file-{user}-{n}");
                    let new = NewMode { mode: Mode::new(0o666), umask };
                    let made = by.create(&text, &exclusive(new)).unwrap();
                    let attr = made.entry.attr;
                    assert_eq!((attr.uid, attr.gid), (1000 + user, 2000 + user));
                    assert_eq!(attr.mode, Mode::new(0o666).without(umask));
                    world.release(File { node: made.entry.node, open: made.open });
                    // The thread itself is unchanged.
                    let own = dir.path().join(format!("own-{user}-{n}"));
                    fs::write(&own, b"").unwrap();
                    assert_eq!(fs::metadata(&own).unwrap().uid(), 0);
                }
            });
        }
    });
}
