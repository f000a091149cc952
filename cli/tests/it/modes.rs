//! Permissions of the files that commands create, under any umask.

use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::far::Far;
use crate::common::{MountPlace, Scratch, is_mounted};
use crate::vm::Bed;

/// Set in the child process with the umask, which is per process.
const UMASK: &str = "TOMBOLO_TEST_UMASK";
/// Files with secrets, others' data or unsent changes: private to the owner, even with umask 0.
const PRIVATE: [&str; 5] = ["state", "run", "cache", "nfs-state", "origin-state"];

#[test]
fn commands_leave_no_right_that_the_umask_takes() {
    if let Ok(umask) = std::env::var(UMASK) {
        let umask = u32::from_str_radix(&umask, 8).expect("octal digits");
        let left = [servers(umask), write_back(umask), disks(umask), trees(umask), vms(umask)].concat();
        assert!(left.is_empty(), "under {umask:03o}:\n{}", left.join("\n"));
        return;
    }
    let test = "modes::commands_leave_no_right_that_the_umask_takes";
    let failed = ["000", "022", "077"].map(|umask| {
        let mut command = Command::new("sh");
        command.args(["-c", r#"umask "$1" && exec "$2" --exact "$3""#, "sh", umask]);
        command.arg(std::env::current_exe().expect("the test")).arg(test).env(UMASK, umask);
        let ran = command.output().expect("sh");
        (!ran.status.success()).then(|| String::from_utf8_lossy(&ran.stdout).into_owned())
    });
    let failed: Vec<_> = failed.into_iter().flatten().collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// A directory, and its contents before the command.
struct Left<'a> {
    scratch: &'a Scratch,
    umask: u32,
    before: Vec<PathBuf>,
    wrong: Vec<String>,
}

impl<'a> Left<'a> {
    fn of(scratch: &'a Scratch, umask: u32) -> Self {
        // Typical mode of a directory created manually.
        fs::create_dir(scratch.path("cache")).expect("mkdir");
        fs::set_permissions(scratch.path("cache"), fs::Permissions::from_mode(0o755)).expect("chmod");
        let before = entries(&scratch.path("")).into_iter().map(|(path, _)| path).collect();
        Self { scratch, umask, before, wrong: Vec::new() }
    }

    /// Checks new files.
    fn look(&mut self, command: &str) {
        for (path, found) in entries(&self.scratch.path("")) {
            if self.before.contains(&path) || found.is_symlink() {
                continue;
            }
            let name = path.strip_prefix(self.scratch.path("")).expect("in it");
            // Read by all clients of the origin.
            if name.ends_with(".tombolo-lease") {
                continue;
            }
            let is_private = PRIVATE.iter().any(|private| name.starts_with(private)) && !self.is_behind(name);
            let taken = if is_private { self.umask | 0o077 } else { self.umask };
            let rights = found.mode() & 0o777;
            if rights & taken != 0 && !found.file_type().is_socket() {
                self.wrong.push(format!("{command}: {rights:03o} {}", name.display()));
            }
            self.before.push(path);
        }
    }

    /// Returns `true` if a parent directory admits only its owner.
    fn is_behind(&self, name: &Path) -> bool {
        name.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()).any(|above| {
            fs::metadata(self.scratch.path("").join(above)).is_ok_and(|found| found.mode() & 0o077 == 0)
        })
    }

    /// Checks that files unreadable to others have no readable copies.
    fn is_private(&mut self, command: &str, names: &[&str]) {
        for name in names {
            let rights = fs::metadata(self.scratch.path(name)).expect("stat").mode() & 0o777;
            if rights & 0o077 != 0 {
                self.wrong.push(format!("{command}: {rights:03o} {name}, of a file with 600"));
            }
        }
    }

    /// Checks that files created by programs have exactly the requested mode minus the umask.
    fn is_exact(&mut self, command: &str, dir: &Path) {
        for (name, asked) in [("file", 0o666), ("dir", 0o777), ("pipe", 0o666)] {
            let rights = fs::metadata(dir.join(name)).expect("stat").mode() & 0o777;
            if rights != asked & !self.umask {
                self.wrong.push(format!("{command}: {rights:03o} {name}, made with {asked:03o}"));
            }
        }
    }
}

/// Lists everything below a directory, except mounts.
fn entries(dir: &Path) -> Vec<(PathBuf, Metadata)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let Ok(stat) = entry.path().symlink_metadata() else { continue };
        if is_mounted(&entry.path()) {
            continue;
        }
        if stat.is_dir() {
            found.extend(entries(&entry.path()));
        }
        found.push((entry.path(), stat));
    }
    found
}

/// Creates one file of each kind.
fn make(dir: &Path) {
    fs::create_dir_all(dir).expect("mkdir");
    Scratch::of(dir).sh("echo >file; mkdir dir; mkfifo pipe");
}

/// Runs key commands, directory servers, and mounts.
fn servers(umask: u32) -> Vec<String> {
    let Some(place) = MountPlace::new() else { return Vec::new() };
    let scratch = &place.0;
    let mut left = Left::of(scratch, umask);
    scratch.run("keys ca --ca ca").succeeded();
    scratch.run("keys issue alice --ca ca --out alice").succeeded();
    scratch.run("keys revoke alice --ca ca").succeeded();
    left.look("keys");
    let words = "serve tree --nfs 127.0.0.1:0 --state nfs-state --shm link.sock";
    let more = "--fuse mnt --host-watch --squash none --control serve.sock";
    let server = scratch.serve(format!("{words} {more}"));
    make(&place.mnt().join("served"));
    left.is_exact("serve --fuse", &scratch.path("tree/served"));
    let url = format!("nfs://{}/tree", server.nfs_address());
    scratch.run(format!("cp plain {url}/over-nfs")).succeeded();
    scratch.run("cp plain shm:link.sock/tree/over-shm").succeeded();
    left.look("serve");
    server.stop();
    for (source, options) in [("dir:tree", "allow_other"), ("dir:tree", "coherence=push")] {
        scratch.run(format!("mount {source} mnt -o {options}")).succeeded();
        make(&place.mnt().join(options));
        left.is_exact("mount", &scratch.path("tree").join(options));
        left.look("mount");
        place.umount();
    }
    left.look("umount");
    left.wrong
}

/// Runs a proxy with unsent changes.
fn write_back(umask: u32) -> Vec<String> {
    let Some(mut far) = Far::new() else { return Vec::new() };
    let url = far.url("?retry=1&soft");
    let scratch = Scratch::of(&far.path(""));
    let mut left = Left::of(&scratch, umask);
    let words = format!("proxy {url} --cache cache --mode write-back --contract exclusive");
    let proxy = scratch.serve(format!("{words} --take-lease --control proxy.sock --fuse mnt"));
    make(&far.mnt("first"));
    scratch.run("session flush --control proxy.sock").succeeded();
    left.is_exact("proxy", &far.tree("first"));
    // Looked-up names can be changed without the origin.
    scratch.program("ls", &["-lR", "mnt", "mnt/second"]).output().expect("ls");
    far.stop_origin();
    make(&far.mnt("second"));
    fs::write(far.mnt("second/large"), vec![7; 3 << 20]).expect("write");
    left.look("proxy --mode write-back");
    proxy.kill();
    far.place.take_away(&far.place.mnt());
    left.look("proxy --mode write-back, killed");
    left.wrong
}

/// Runs disk commands on a private disk.
fn disks(umask: u32) -> Vec<String> {
    let scratch = Scratch::new();
    let base = scratch.sparse("base.img", 4 << 20);
    base.set_permissions(fs::Permissions::from_mode(0o600)).expect("chmod");
    let mut left = Left::of(&scratch, umask);
    scratch.run("disk create one.overlay --base base.img").succeeded();
    scratch.run("disk create two.overlay --base one.overlay").succeeded();
    left.is_private("disk create --base", &["one.overlay", "two.overlay"]);
    scratch.run("disk convert base.img copy.qcow2").succeeded();
    scratch.run("disk convert base.img copy.img").succeeded();
    scratch.run("disk convert two.overlay dir:copy-2.img").succeeded();
    left.is_private("disk convert", &["copy.qcow2", "copy.img", "copy-2.img"]);
    scratch.run("cp -p base.img copied.img").succeeded();
    left.is_private("cp -p", &["copied.img"]);
    scratch.serve("disk one.overlay --nbd ./it.nbd").stop();
    left.look("disk");
    left.wrong
}

/// Runs commands that copy and create trees.
fn trees(umask: u32) -> Vec<String> {
    let scratch = Scratch::new();
    for name in ["from", "from/dir"] {
        fs::create_dir(scratch.path(name)).expect("mkdir");
        fs::set_permissions(scratch.path(name), fs::Permissions::from_mode(0o777)).expect("chmod");
        let file = scratch.path(name).join("file");
        fs::write(&file, "content").expect("write");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).expect("chmod");
    }
    let mut left = Left::of(&scratch, umask);
    scratch.run("mkdir -p dir:new/below").succeeded();
    scratch.run("cp -r dir:from dir:to").succeeded();
    scratch.run("cp from/file copy").succeeded();
    scratch.run("mv dir:to/file dir:to/moved").succeeded();
    left.look("cp");
    left.wrong
}

/// Runs a VM from its start to an incremental image of a clone.
fn vms(umask: u32) -> Vec<String> {
    let bed = Bed::new();
    let mut left = Left::of(&bed.0, umask);
    bed.make_image();
    left.look("vm suspend --to");
    bed.clone_of("image", "one", "").succeeded();
    left.look("clone");
    bed.run("image scan image").succeeded();
    left.look("image scan");
    bed.run("vm suspend one --to changes --changes").succeeded();
    left.look("vm suspend --changes");
    left.wrong
}
