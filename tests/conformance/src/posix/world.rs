//! Environment of a case: a directory of its own, and child processes.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// A case's own directory, mode 0777. Removed with its contents when dropped.
pub struct World {
    /// The directory.
    pub dir: PathBuf,
}

impl World {
    /// Makes a directory for the `index`th case.
    pub fn new(parent: &Path, index: usize) -> Self {
        let dir = parent.join(format!("case-{index}"));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).expect("the case's directory");
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).expect("the directory's mode");
        Self { dir }
    }

    /// Returns the path of `name` in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Makes a file, mode 0644, and keeps it open for reading and writing.
    pub fn file(&self, name: &str) -> File {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(self.path(name));
        let file = file.expect("create");
        file.set_permissions(fs::Permissions::from_mode(0o644)).expect("chmod");
        file
    }

    /// Makes a file with contents, mode 0644.
    pub fn file_with(&self, name: &str, bytes: &[u8]) -> PathBuf {
        self.file(name).write_all_at(bytes, 0).expect("write");
        self.path(name)
    }

    /// Makes a directory, mode 0755.
    pub fn mkdir(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir(&path).expect("mkdir");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("chmod");
        path
    }

    /// Returns the names in the directory, sorted.
    pub fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.dir).expect("readdir").map(|entry| entry.expect("an entry"));
        let mut names: Vec<_> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Runs a helper (see [`super::helper`]) to its end and returns what it printed.
    pub fn helper(&self, arguments: &[&str]) -> String {
        let output = command(arguments).stderr(Stdio::inherit()).output().expect("the helper runs");
        assert!(output.status.success(), "helper {arguments:?}: {}", output.status);
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Starts a helper that runs concurrently with the case.
    pub fn background(&self, arguments: &[&str]) -> Background {
        let mut child = command(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the helper starts");
        let out = BufReader::new(child.stdout.take().expect("its output"));
        Background { child, out }
    }

    /// Runs an action as another user; returns its errno, or 0.
    pub fn as_user(&self, ids: &str, action: &str, path: &Path) -> i32 {
        let printed = self.helper(&["as", ids, action, &path.to_string_lossy()]);
        printed.parse().expect("an error number")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Files of a failed case may resist removal; the report matters more.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A helper that runs concurrently with the case. Killed when dropped.
pub struct Background {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Background {
    /// Waits for the helper's next line of output.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("a line of the helper");
        line.trim_end().to_owned()
    }

    /// Resumes the helper.
    pub fn go_on(&mut self) {
        self.child.stdin.as_mut().expect("its input").write_all(b"\n").expect("a byte for the helper");
    }

    /// Closes the helper's input, waits for its exit, and returns its remaining output.
    pub fn finish(mut self) -> String {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).expect("the helper's output");
        self.child.wait().expect("the helper ends");
        rest.trim().to_owned()
    }

    /// Sends a terminating signal and waits for the exit.
    pub fn terminate(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("a signal");
        self.child.wait().expect("the helper ends");
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg("--helper").args(arguments);
    command
}
