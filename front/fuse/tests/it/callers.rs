//! Identity of callers, with all groups, for file systems that check permissions.

use crate::common::{Mounted, OneFile, Shared};
use std::process::Command;
use std::sync::Arc;
use tombolo_core::Identity;
use tombolo_core::fs::PermissionCheck;
use tombolo_front_fuse::dev::Options;

/// A file system mounted for all users.
struct Asked {
    fs: Arc<OneFile>,
    mounted: Mounted,
}

impl Asked {
    fn new(checks: PermissionCheck) -> Self {
        let fs = Arc::new(OneFile { checks, ..OneFile::default() });
        let mounted = Mounted::new(&Shared(fs.clone()), &Options::default());
        Self { fs, mounted }
    }

    /// Runs a shell script in the mount as a user with a primary and two supplementary groups; returns the
    /// file system's calls.
    fn asked(&self, script: &str) -> Vec<(&'static str, Identity)> {
        self.fs.asked.lock().unwrap().clear();
        let status = Command::new("sh").args(["-c", script]).current_dir(self.mounted.path()).status();
        assert!(status.expect("sh").success(), "{script}");
        std::mem::take(&mut *self.fs.asked.lock().unwrap())
    }
}

const JOE: &str = "setpriv --reuid 1234 --regid 2345 --groups 11,22";

fn joe(groups: &[u32]) -> Identity {
    Identity { uid: 1234, gid: 2345, groups: (!groups.is_empty()).then(|| groups.into()) }
}

fn of<'a>(
    asked: &'a [(&'static str, Identity)],
    what: &'static str,
) -> impl Iterator<Item = &'a Identity> + 'a {
    asked.iter().filter(move |(asked, _)| *asked == what).map(|(_, identity)| identity)
}

#[test]
fn all_groups_of_a_caller_are_told() {
    let asking = Asked::new(PermissionCheck::BackEnd);
    let asked =
        asking.asked(&format!("{JOE} head -c 10 file >/dev/null && {JOE} dd if=/dev/zero of=file count=1"));
    for what in ["lookup", "open", "read", "write"] {
        assert!(of(&asked, what).count() > 0, "{what}: {asked:?}");
        assert!(of(&asked, what).all(|identity| *identity == joe(&[11, 22])), "{what}: {asked:?}");
    }
    let asked = asking.asked("head -c 10 file >/dev/null");
    assert!(asked.iter().all(|(_, identity)| *identity == Identity::ROOT), "{asked:?}");
}

#[test]
fn an_opening_is_used_with_its_openers_identity() {
    let asking = Asked::new(PermissionCheck::BackEnd);
    let asked = asking.asked(&format!(
        "exec 3<>file; {JOE} dd bs=4096 count=1 <&3 >/dev/null; {JOE} dd if=/dev/zero count=1 >&3"
    ));
    for what in ["read", "write"] {
        assert!(of(&asked, what).count() > 0, "{what}: {asked:?}");
        assert!(of(&asked, what).all(|identity| *identity == Identity::ROOT), "{what}: {asked:?}");
    }
}

#[test]
fn groups_are_not_read_where_the_kernel_checks() {
    let asking = Asked::new(PermissionCheck::Caller);
    let asked =
        asking.asked(&format!("{JOE} head -c 10 {}/file >/dev/null", asking.mounted.path().display()));
    assert!(of(&asked, "open").all(|identity| *identity == joe(&[])), "{asked:?}");
    assert!(of(&asked, "open").count() > 0);
}

#[test]
fn cached_names_do_not_admit_other_users() {
    let asking = Asked::new(PermissionCheck::BackEnd);
    let options = std::fs::read_to_string("/proc/self/mounts").expect("proc");
    let ours = options.lines().find(|line| line.contains(&*asking.mounted.path().to_string_lossy()));
    assert!(ours.is_some_and(|line| line.contains("default_permissions")), "{ours:?}");
}
