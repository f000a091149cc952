//! Permissions of other users.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::io::Errno;

use super::cases;
use crate::posix::World;
use crate::report::{Skip, Verdict};

cases! { "permissions": ;
    root: the_mode_binds_owner_group_and_others,
    supplementary_groups_count,
    a_directory_is_searched_and_changed_with_leave,
    a_sticky_directory_protects_its_entries,
    a_set_group_id_directory_hands_its_group_on,
    a_foreign_write_drops_privileges,
    a_program_needs_leave_to_run,
}

const DENIED: i32 = Errno::ACCESS.raw_os_error();
const NOT_PERMITTED: i32 = Errno::PERM.raw_os_error();

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("chmod");
}

/// Creates a file of user 1000 and group 1001.
fn owned(w: &World, name: &str, mode: u32) -> PathBuf {
    let path = w.file_with(name, b"secret");
    std::os::unix::fs::chown(&path, Some(1000), Some(1001)).expect("chown");
    chmod(&path, mode);
    path
}

/// Checks that other users can reach the directory; otherwise skips the case.
fn reachable(w: &World) -> Verdict {
    match w.as_user("65000:65000", "list", &w.dir) {
        0 => Ok(()),
        _ => Err(Skip("other users cannot reach the directory".into())),
    }
}

fn the_mode_binds_owner_group_and_others(w: &World) -> Verdict {
    reachable(w)?;
    let path = owned(w, "file", 0);
    for (class, ids) in ["1000:5", "5:1001", "5:5"].into_iter().enumerate() {
        for bits in [0, 2, 4, 6] {
            chmod(&path, bits << (6 - 3 * class));
            let expected = |bit| if bits & bit != 0 { 0 } else { DENIED };
            assert_eq!(w.as_user(ids, "read", &path), expected(4), "{ids} reads with {bits}");
            assert_eq!(w.as_user(ids, "write", &path), expected(2), "{ids} writes with {bits}");
            assert_eq!(w.as_user(ids, "access-w", &path), expected(2), "{ids} asks with {bits}");
        }
    }
    chmod(&path, 0o077);
    assert_eq!(w.as_user("1000:1001", "read", &path), DENIED, "the owner is not one of the others");
    Ok(())
}

fn supplementary_groups_count(w: &World) -> Verdict {
    reachable(w)?;
    let path = owned(w, "file", 0o060);
    assert_eq!(w.as_user("5:5:7,1001", "write", &path), 0);
    assert_eq!(w.as_user("5:5:7", "write", &path), DENIED);
    Ok(())
}

fn a_directory_is_searched_and_changed_with_leave(w: &World) -> Verdict {
    reachable(w)?;
    let dir = w.mkdir("dir");
    fs::write(dir.join("inner"), b"").expect("write");
    chmod(&dir.join("inner"), 0o644);
    let act = |action, name: &str| w.as_user("5:5", action, &dir.join(name));
    chmod(&dir, 0o755);
    assert_eq!(act("stat", "inner"), 0);
    for (action, name) in
        [("create", "new"), ("mkdir", "new"), ("symlink", "new"), ("unlink", "inner"), ("rename", "inner")]
    {
        assert_eq!(act(action, name), DENIED, "{action}");
    }
    chmod(&dir, 0o744);
    assert_eq!(act("stat", "inner"), DENIED);
    assert_eq!(w.as_user("5:5", "list", &dir), 0);
    chmod(&dir, 0o711);
    assert_eq!(act("stat", "inner"), 0, "search without reading");
    assert_eq!(w.as_user("5:5", "list", &dir), DENIED);
    chmod(&dir, 0o777);
    assert_eq!(act("create", "new"), 0);
    Ok(())
}

fn a_sticky_directory_protects_its_entries(w: &World) -> Verdict {
    reachable(w)?;
    let dir = w.mkdir("dir");
    chmod(&dir, 0o1777);
    assert_eq!(w.as_user("1000:1000", "create", &dir.join("a")), 0);
    assert_eq!(w.as_user("2000:2000", "unlink", &dir.join("a")), NOT_PERMITTED);
    assert_eq!(w.as_user("2000:2000", "rename", &dir.join("a")), NOT_PERMITTED);
    assert_eq!(w.as_user("1000:1000", "rename", &dir.join("a")), 0);
    assert_eq!(w.as_user("1000:1000", "unlink", &dir.join("a.renamed")), 0);
    Ok(())
}

fn a_set_group_id_directory_hands_its_group_on(w: &World) -> Verdict {
    reachable(w)?;
    let dir = w.mkdir("dir");
    std::os::unix::fs::chown(&dir, None, Some(777)).expect("chown");
    chmod(&dir, 0o2777);
    assert_eq!(w.as_user("1000:1000", "create", &dir.join("file")), 0);
    assert_eq!(fs::metadata(dir.join("file")).expect("stat").gid(), 777);
    assert_eq!(w.as_user("1000:1000", "mkdir", &dir.join("inner")), 0);
    let inner = fs::metadata(dir.join("inner")).expect("stat");
    assert_eq!((inner.gid(), inner.mode() & 0o7777), (777, 0o2755));
    assert_eq!(w.as_user("1000:1000", "create-set-gid", &dir.join("foreign")), 0);
    let foreign = fs::metadata(dir.join("foreign")).expect("stat");
    assert_eq!(foreign.mode() & 0o2000, 0, "a foreign group's bit is not had by creating");
    assert_eq!(w.as_user("1000:1000", "chmod-set-gid", &dir.join("file")), 0);
    let changed = fs::metadata(dir.join("file")).expect("stat");
    assert_eq!(changed.mode() & 0o2000, 0, "a foreign group's bit is not had by chmod");
    Ok(())
}

fn a_foreign_write_drops_privileges(w: &World) -> Verdict {
    reachable(w)?;
    for action in ["write", "truncate"] {
        let path = owned(w, action, 0o6777);
        assert_eq!(w.as_user("5:5", action, &path), 0);
        assert_eq!(fs::metadata(&path).expect("stat").mode() & 0o7777, 0o777, "{action}");
    }
    Ok(())
}

fn a_program_needs_leave_to_run(w: &World) -> Verdict {
    reachable(w)?;
    // Another process copies: a descriptor of ours open for writing could be inherited by another thread's
    // child, and make the copy's execution fail with ETXTBSY.
    let (path, program) = (w.path("program"), std::env::current_exe().expect("this program"));
    let copied = Command::new("cp").arg(program).arg(&path).status().expect("cp(1)");
    assert!(copied.success(), "{copied}");
    chmod(&path, 0o755);
    if w.as_user("5:5", "exec", &path) != 0 {
        return Err(Skip("mounted noexec".into()));
    }
    chmod(&path, 0o744);
    assert_eq!(w.as_user("5:5", "exec", &path), DENIED);
    chmod(&path, 0o711);
    assert_eq!(w.as_user("5:5", "exec", &path), 0, "to run needs no leave to read");
    assert_eq!(w.as_user("5:5", "read", &path), DENIED);
    Ok(())
}
