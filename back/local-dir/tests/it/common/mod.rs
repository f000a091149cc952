//! A served directory and short ways to use it.
#![allow(dead_code, reason = "each test file uses a part")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tombolo_back_local_dir::{LocalDir, Options};
use tombolo_core::fs::{
    Client, Cookie, Create, Created, DirBudget, DirPage, Entry, Exclusive, Export, File, FileSystem, Lock,
    LockFamily, LockKind, LockOwner, LockRange, Mode, Name, NewMode, NodeId, OpenFlags, PermissionCheck,
    Write,
};
use tombolo_core::{Ctx, Error, Identity, Interrupt, Result, SessionId};
use tombolo_mem::{Region, Sink, Source};

pub struct World {
    pub export: LocalDir,
    pub fs: Arc<dyn FileSystem>,
    pub cx: Ctx,
}

pub const ROOT: NodeId = NodeId::ROOT;
pub const READ_WRITE: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// Serves `path`.
pub fn serve(path: &Path, options: Options) -> World {
    serve_checked(path, options, PermissionCheck::Caller)
}

/// Serves `path` to a client with this permission check.
pub fn serve_checked(path: &Path, options: Options, checks: PermissionCheck) -> World {
    let export = LocalDir::open(path, options).expect("serve");
    World::attach(export, checks)
}

pub fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).expect("a name")
}

pub fn mode(bits: u32) -> NewMode {
    NewMode::settled(Mode::new(bits))
}

impl World {
    pub fn attach(export: LocalDir, checks: PermissionCheck) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let session = SessionId(NEXT.fetch_add(1, Ordering::Relaxed));
        let fs = export.attach(&Client { session, label: "test".into(), checks }).expect("attach");
        Self { export, fs, cx: Ctx { interrupt: Interrupt::new(), ..Ctx::root(session) } }
    }

    /// Attaches a second session to the same export.
    pub fn another(&self) -> Self {
        Self::attach(self.export.clone(), self.fs.profile().permission_check)
    }

    pub fn user(&self, uid: u32, gid: u32, groups: &[u32]) -> Ctx {
        Ctx { identity: Identity { uid, gid, groups: Some(groups.into()) }, ..self.cx.clone() }
    }

    pub fn lookup(&self, parent: NodeId, text: &str) -> Result<Entry> {
        self.fs.lookup(&self.cx, parent, name(text)).wait()
    }

    pub fn walk(&self, path: &str) -> Result<Entry> {
        let mut entry = None;
        for part in path.split('/') {
            let parent = entry.map_or(ROOT, |entry: Entry| entry.node);
            entry = Some(self.lookup(parent, part)?);
        }
        entry.ok_or(Error::NotFound)
    }

    pub fn create(&self, parent: NodeId, text: &str) -> Result<Created> {
        self.create_as(&self.cx, parent, text, mode(0o644))
    }

    pub fn create_as(&self, cx: &Ctx, parent: NodeId, text: &str, mode: NewMode) -> Result<Created> {
        let how = Create { mode, flags: READ_WRITE, exclusive: Exclusive::Yes };
        self.fs.create(cx, parent, name(text), &how).wait()
    }

    pub fn open(&self, node: NodeId, flags: OpenFlags) -> Result<File> {
        self.fs.open(&self.cx, node, flags).wait().map(|opened| File { node, open: opened.open })
    }

    pub fn write(&self, file: File, offset: u64, bytes: &[u8]) -> Result<usize> {
        let how = Write { offset, ..Write::default() };
        self.fs.write(&self.cx, file, &how, source(bytes)).wait().map(|written| written.count)
    }

    pub fn read(&self, file: File, offset: u64, len: usize) -> Result<Vec<u8>> {
        let region = Region::heap(len);
        let done = self.fs.read(&self.cx, file, offset, Sink::from(&region)).wait()?;
        let mut bytes = vec![0; done.count];
        region.read_at(0, &mut bytes).expect("inside");
        Ok(bytes)
    }

    /// Lists all names of a directory, in small pages.
    pub fn list(&self, node: NodeId, plus: bool) -> Result<Vec<String>> {
        let file = self.open(node, OpenFlags::READ | OpenFlags::DIRECTORY)?;
        let budget = DirBudget { size_bytes: 1000, entry_bytes: 24, align: 8, plus };
        let mut page = DirPage::new(budget);
        let mut cookie = Cookie::START;
        let mut names = Vec::new();
        loop {
            page.reset(budget);
            page = self.fs.readdir(&self.cx, file, cookie, page).wait()?;
            for entry in page.iter() {
                names.push(String::from_utf8_lossy(entry.name).into_owned());
                cookie = entry.cookie;
            }
            if page.is_end() {
                break;
            }
        }
        self.fs.release(&self.cx, file);
        names.sort();
        Ok(names)
    }
}

pub fn source(bytes: &[u8]) -> Source {
    let region = Region::heap(bytes.len());
    region.write_at(0, bytes).expect("inside");
    Source::from(&region)
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
        Self(at.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
