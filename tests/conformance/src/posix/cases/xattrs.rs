//! Extended attributes and ACLs.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, StatxFlags, XattrFlags};
use rustix::io::Errno;

use super::cases;
use crate::posix::World;
use crate::report::{Skip, Verdict};
use crate::sample_acl;

cases! { "xattrs":
    values_are_kept,
    create_and_replace_are_told_apart,
    names_are_listed,
    a_value_that_does_not_fit_is_refused;
    root: an_access_acl_shows_in_the_mode_at_once,
    an_access_acl_sets_the_mode,
    a_default_acl_takes_the_umasks_place,
}

fn set(path: &Path, name: &str, value: &[u8], flags: XattrFlags) -> Result<rustix::io::Result<()>, Skip> {
    match rustix::fs::lsetxattr(path, name, value, flags) {
        Err(Errno::OPNOTSUPP) => Err(Skip("these attributes are not supported here".into())),
        outcome => Ok(outcome),
    }
}

fn get(path: &Path, name: &str) -> rustix::io::Result<Vec<u8>> {
    let mut value = vec![0; 65_536];
    let len = rustix::fs::lgetxattr(path, name, &mut value[..])?;
    value.truncate(len);
    Ok(value)
}

fn names(path: &Path) -> Vec<String> {
    let mut names = vec![0; 65_536];
    let len = rustix::fs::llistxattr(path, &mut names[..]).expect("listxattr");
    let split = names[..len].split(|byte| *byte == 0).filter(|name| name.starts_with(b"user."));
    let mut names: Vec<_> = split.map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    names.sort();
    names
}

fn values_are_kept(w: &World) -> Verdict {
    for path in [w.file_with("file", b""), w.mkdir("dir")] {
        for value in [&b"plain"[..], b"", b"\0\xff\0", &[b'v'; 1000]] {
            set(&path, "user.comment", value, XattrFlags::empty())?.expect("setxattr");
            assert_eq!(get(&path, "user.comment").expect("getxattr"), value);
        }
        rustix::fs::lremovexattr(&path, "user.comment").expect("removexattr");
        assert_eq!(get(&path, "user.comment").expect_err("gone"), Errno::NODATA);
        assert_eq!(rustix::fs::lremovexattr(&path, "user.comment").expect_err("gone"), Errno::NODATA);
    }
    Ok(())
}

fn create_and_replace_are_told_apart(w: &World) -> Verdict {
    let path = w.file_with("file", b"");
    let missing = set(&path, "user.a", b"1", XattrFlags::REPLACE)?;
    assert_eq!(missing.expect_err("missing"), Errno::NODATA);
    set(&path, "user.a", b"1", XattrFlags::CREATE)?.expect("setxattr");
    assert_eq!(set(&path, "user.a", b"2", XattrFlags::CREATE)?.expect_err("exists"), Errno::EXIST);
    set(&path, "user.a", b"2", XattrFlags::REPLACE)?.expect("setxattr");
    assert_eq!(get(&path, "user.a").expect("getxattr"), b"2");
    Ok(())
}

fn names_are_listed(w: &World) -> Verdict {
    let path = w.file_with("file", b"");
    for name in ["user.b", "user.a", "user.with space"] {
        set(&path, name, b"x", XattrFlags::empty())?.expect("setxattr");
    }
    assert_eq!(names(&path), ["user.a", "user.b", "user.with space"]);
    let mut small = [0; 3];
    assert_eq!(rustix::fs::llistxattr(&path, &mut small[..]).expect_err("too small"), Errno::RANGE);
    assert!(rustix::fs::llistxattr_query(&path).expect("the size alone") >= 30);
    Ok(())
}

fn a_value_that_does_not_fit_is_refused(w: &World) -> Verdict {
    let path = w.file_with("file", b"");
    set(&path, "user.a", &[7; 100], XattrFlags::empty())?.expect("setxattr");
    let mut small = [0; 99];
    assert_eq!(rustix::fs::lgetxattr(&path, "user.a", &mut small[..]).expect_err("too small"), Errno::RANGE);
    assert_eq!(rustix::fs::lgetxattr_query(&path, "user.a").expect("the size alone"), 100);
    let refused = set(&path, "user.b", &vec![0; 70_000], XattrFlags::empty())?.expect_err("too big");
    assert!([Errno::TOOBIG, Errno::NOSPC].contains(&refused), "{refused}");
    Ok(())
}

/// Queries only the mode, as stat(1) and ls(1) do.
fn an_access_acl_shows_in_the_mode_at_once(w: &World) -> Verdict {
    let path = w.file_with("file", b"");
    let mode = || {
        let statx = rustix::fs::statx(CWD, &path, AtFlags::empty(), StatxFlags::MODE).expect("statx");
        u32::from(statx.stx_mode) & 0o777
    };
    assert_eq!(mode(), 0o644);
    set(&path, "system.posix_acl_access", &sample_acl(), XattrFlags::empty())?.expect("setxattr");
    assert_eq!(mode(), 0o660);
    Ok(())
}

fn an_access_acl_sets_the_mode(w: &World) -> Verdict {
    let path = w.file_with("file", b"for seven");
    set(&path, "system.posix_acl_access", &sample_acl(), XattrFlags::empty())?.expect("setxattr");
    assert_eq!(fs::metadata(&path).expect("stat").mode() & 0o777, 0o660);
    assert_eq!(get(&path, "system.posix_acl_access").expect("getxattr"), sample_acl());
    assert_eq!(w.as_user("7:7", "write", &path), 0, "the named user");
    assert_eq!(w.as_user("8:8", "read", &path), Errno::ACCESS.raw_os_error());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("chmod");
    assert_eq!(w.as_user("7:7", "read", &path), Errno::ACCESS.raw_os_error(), "the mask follows the mode");
    Ok(())
}

fn a_default_acl_takes_the_umasks_place(w: &World) -> Verdict {
    let dir = w.mkdir("dir");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).expect("chmod");
    set(&dir, "system.posix_acl_default", &sample_acl(), XattrFlags::empty())?.expect("setxattr");
    // The helper's umask of 022 would clear the group's write bit.
    assert_eq!(w.as_user("9:9", "create", &dir.join("file")), 0);
    assert_eq!(fs::metadata(dir.join("file")).expect("stat").mode() & 0o777, 0o660);
    assert_eq!(w.as_user("7:7", "write", &dir.join("file")), 0, "the named user");
    assert_eq!(w.as_user("9:9", "mkdir", &dir.join("inner")), 0);
    assert_eq!(get(&dir.join("inner"), "system.posix_acl_default").expect("handed on"), sample_acl());
    Ok(())
}
