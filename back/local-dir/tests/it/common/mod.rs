//! A served directory and short ways to use it.
#![allow(dead_code, reason = "each test file uses a part")]

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use tombolo_back_local_dir::{LocalDir, Options};
use tombolo_core::fs::{
    Cookie, Create, Created, Exclusive, Lock, LockFamily, LockKind, LockOwner, LockRange, NodeId,
    PermissionCheck,
};
use tombolo_core::{Ctx, Identity, Interrupt, Result};
use tombolo_test_support::{Place, Session, budget, plain};

pub struct World {
    pub export: LocalDir,
    pub session: Session,
}

impl Deref for World {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

pub const ROOT: NodeId = NodeId::ROOT;

/// Serves a new directory.
pub fn served() -> (TempDir, World) {
    let dir = tempfile::tempdir().expect("a directory");
    let world = serve(dir.path(), Options::default());
    (dir, world)
}

/// Serves `path`.
pub fn serve(path: &Path, options: Options) -> World {
    serve_checked(path, options, PermissionCheck::Caller)
}

/// Serves `path` to a client with this permission check.
pub fn serve_checked(path: &Path, options: Options, checks: PermissionCheck) -> World {
    let export = LocalDir::open(path, options).expect("serve");
    World::attach(export, checks)
}

impl World {
    pub fn attach(export: LocalDir, checks: PermissionCheck) -> Self {
        let session = Session::checked(&export, checks);
        let cx = Ctx { interrupt: Interrupt::new(), ..session.cx.clone() };
        Self { export, session: session.with(cx) }
    }

    /// Attaches a second session to the same export.
    pub fn another(&self) -> Self {
        Self::attach(self.export.clone(), self.fs.profile().permission_check)
    }

    /// Returns the session acting for a user with these groups only.
    pub fn user(&self, uid: u32, gid: u32, groups: &[u32]) -> Session {
        self.with(Ctx { identity: Identity { uid, gid, groups: Some(groups.into()) }, ..self.cx.clone() })
    }

    /// Creates a file, mode 0644.
    pub fn created<'a>(&self, at: impl Into<Place<'a>>) -> Result<Created> {
        self.create(at, &Create { exclusive: Exclusive::Yes, ..plain() })
    }

    /// Lists all names of a directory, in small pages.
    pub fn list(&self, node: NodeId, plus: bool) -> Result<Vec<String>> {
        let file = self.open_dir(node)?;
        let (mut names, mut cookie) = (Vec::new(), Cookie::START);
        loop {
            let page = self.readdir(file, cookie, budget(1000, plus))?;
            for entry in page.iter() {
                names.push(String::from_utf8_lossy(entry.name).into_owned());
                cookie = entry.cookie;
            }
            if page.is_end() {
                break;
            }
        }
        self.release(file);
        names.sort();
        Ok(names)
    }
}

pub fn record(kind: LockKind, start: u64, last: u64, owner: u64) -> Lock {
    let range = LockRange { start, last };
    Lock { family: LockFamily::Posix, kind, range, owner: LockOwner(owner), pid: owner as u32 }
}

pub fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("proc").count()
}

pub fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("proc");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<usize>().ok()).expect("a number") * 1024
}

/// Runs the named test of this binary again as an unprivileged user. Returns `true` in the calling process.
pub fn again_as_nobody(test: &str) -> bool {
    use std::{os::unix::process::CommandExt, process::Command};
    const MARK: &str = "TOMBOLO_AS_NOBODY";
    if std::env::var_os(MARK).is_some() {
        return false;
    }
    let binary = tempfile::tempdir().expect("a place for the binary");
    std::fs::set_permissions(binary.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("chmod");
    let copy = binary.path().join("test");
    // By another process: a descriptor of ours open for writing, inherited by another test's child, would
    // make the execution fail with ETXTBSY.
    let mut copying = Command::new("cp");
    copying.arg(std::env::current_exe().expect("own path")).arg(&copy);
    assert!(copying.status().expect("cp(1)").success());
    let status = Command::new(&copy)
        .args(["--exact", test, "--nocapture"])
        .env(MARK, "1")
        .current_dir("/")
        .uid(65534)
        .gid(65534)
        .status()
        .expect("run again");
    assert!(status.success(), "{test} failed as an unprivileged user");
    true
}

/// Runs a program, which must succeed.
pub fn run(command: &mut Command) {
    let output = command.output().expect("run");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A mount for the length of a test.
pub struct Mounted(PathBuf);

impl Mounted {
    pub fn new(what: &[&str], at: &Path) -> Self {
        run(Command::new("mount").args(what).arg(at));
        Self::of(at)
    }

    /// Takes over a mount.
    pub fn of(at: &Path) -> Self {
        Self(at.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
