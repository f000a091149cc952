//! Common parts of the tests: a scratch directory, and running the program in it.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod far;

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::ops::Deref;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A scratch directory with `tree` (a directory to share), `mnt` (a mount point), and the directories that
/// the program would otherwise share with others.
pub struct Scratch {
    dir: PathBuf,
    _owned: Option<TempDir>,
}

impl Scratch {
    pub fn new() -> Self {
        Self::new_in(&std::env::temp_dir())
    }

    pub fn new_in(place: &Path) -> Self {
        let owned = TempDir::new_in(place).expect("a scratch directory");
        let dir = owned.path().to_owned();
        for name in ["tree", "mnt", "run", "state"] {
            fs::create_dir(dir.join(name)).expect("mkdir");
        }
        fs::write(dir.join("tree/file"), "content\n").expect("write");
        fs::write(dir.join("plain"), "").expect("write");
        Self { dir, _owned: Some(owned) }
    }

    /// Opens the scratch directory of another process.
    pub fn of(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), _owned: None }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().expect("a path in UTF-8").to_owned()
    }

    /// Returns a command that runs the program in this directory, with the words of `line`.
    pub fn tombolo(&self, line: impl AsRef<str>) -> Command {
        self.program(env!("CARGO_BIN_EXE_tombolo"), &words(&line))
    }

    pub fn program(&self, program: impl AsRef<OsStr>, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(words).current_dir(&self.dir).stdin(Stdio::null());
        command.env("XDG_RUNTIME_DIR", self.path("run")).env("XDG_STATE_HOME", self.path("state"));
        command.env("XDG_CONFIG_HOME", self.path("state")).env("XDG_CACHE_HOME", self.path("state/cache"));
        command.env_remove("TOMBOLO_LOG");
        command
    }

    /// Returns a command that runs a program in a mount namespace, after a script. Mounts of concurrent tests
    /// are detached in it: a copy of a mount would keep it, and its server, alive.
    pub fn in_own_mounts(&self, script: &str, program: &Path, words: &[&str]) -> Command {
        let script = format!("umount -i -a -l -t fuse.tombolo && {script} && exec \"$@\"");
        let mut command = self.program("unshare", &["-m", "sh", "-c", &script, "sh"]);
        command.arg(program).args(words);
        command
    }

    /// Writes a program in a shell's language, readable and executable by all.
    ///
    /// Another process writes it: a descriptor of ours open for writing could be inherited by another test's
    /// child, and make the program's execution fail with ETXTBSY.
    pub fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        let mut command = Command::new("sh");
        command.args(["-c", "cat >\"$1\" && chmod 755 \"$1\"", "sh"]).arg(&path).stdin(Stdio::piped());
        let mut writer = command.spawn().expect("sh(1)");
        writer.stdin.take().expect("its input").write_all(text.as_bytes()).expect("write");
        assert!(writer.wait().expect("wait").success());
        path
    }

    /// Copies the program, for tests that modify it, by another process as with [`Self::script`].
    pub fn copy_of_program(&self) -> PathBuf {
        let copy = self.path("tombolo");
        self.sh(concat!("cp '", env!("CARGO_BIN_EXE_tombolo"), "' tombolo"));
        copy
    }

    /// Runs a shell's script in this directory, which succeeds.
    #[track_caller]
    pub fn sh(&self, script: &str) {
        let done = self.program("sh", &["-ec", script]).status().expect("sh(1)");
        assert!(done.success(), "{script}");
    }

    pub fn run(&self, line: impl AsRef<str>) -> Ran {
        Ran::new(self.tombolo(line))
    }

    /// Returns what `tombolo top` tells of the server at a control socket.
    pub fn top_of(&self, socket: &str) -> serde_json::Value {
        self.run(format!("top --once --json {socket}")).succeeded().json()["servers"][0].take()
    }

    /// Returns the counters of the only cache of a proxy.
    pub fn cache_counts(&self, socket: &str) -> serde_json::Value {
        let mut top = self.top_of(socket);
        let caches = top["caches"].as_object_mut().expect("caches");
        caches.values_mut().next().expect("a cache").take()
    }

    /// Creates a file of zeroes, without data.
    pub fn sparse(&self, name: &str, len: u64) -> fs::File {
        let file = fs::File::create(self.path(name)).expect("create");
        file.set_len(len).expect("a length");
        file
    }

    /// Asserts that each command line fails with this code and one line that contains these parts, and leaves
    /// no files.
    #[track_caller]
    pub fn all_fail(&self, cases: &[(&str, i32, &[&str])]) {
        let before = self.listing();
        for (line, code, said) in cases {
            eprintln!("tombolo {line}");
            self.run(line).failed(*code, said);
            assert_eq!(self.listing(), before, "something was left behind by {line:?}");
        }
    }

    /// Lists all files and directories, except logs, the directories of control sockets and links, and drafts
    /// of files in them, which a server may be about to rename.
    pub fn listing(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut ahead = vec![self.dir.clone()];
        while let Some(dir) = ahead.pop() {
            let entries = match fs::read_dir(&dir) {
                // Removed by an ending server since it was listed.
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    found.retain(|path| *path != dir);
                    continue;
                }
                entries => entries.expect("list"),
            };
            for entry in entries.map(|entry| entry.expect("an entry")) {
                if entry.file_type().expect("a type").is_dir() && !is_mounted(&entry.path()) {
                    ahead.push(entry.path());
                }
                found.push(entry.path());
            }
        }
        found.retain(|path| !path.starts_with(self.path("state")) && *path != self.path("run/tombolo"));
        found.retain(|path| {
            *path != self.path("run/tombolo/links") && *path != self.path("run/tombolo/keepers")
        });
        let run = self.path("run/tombolo");
        found.retain(|path| !(path.starts_with(&run) && path.extension().is_some_and(|it| it == "new")));
        found.sort();
        found
    }

    /// Starts a server and reads its output up to the line of its control socket.
    pub fn serve(&self, line: impl AsRef<str>) -> Server {
        self.serve_until(line, "ready control")
    }

    /// Starts a server and reads its output up to the line that begins with `last`.
    pub fn serve_until(&self, line: impl AsRef<str>, last: &str) -> Server {
        self.started(self.tombolo(line), last)
    }

    /// Starts a shared-memory server of `tree` at `link.sock`.
    pub fn serve_shm(&self, more: &str) -> Server {
        self.serve(format!("serve tree --shm link.sock --control serve.sock {more}"))
    }

    /// Starts an NFS server of `tree` without squashing, and returns the URL of the export.
    pub fn serve_nfs(&self) -> (Server, String) {
        self.serve_nfs_with("--squash none")
    }

    /// Starts an NFS server of `tree` with these options.
    pub fn serve_nfs_with(&self, more: &str) -> (Server, String) {
        let line = "serve tree --nfs 127.0.0.1:0 --state nfs-state --control serve.sock";
        let server = self.serve(format!("{line} {more}"));
        let url = format!("nfs://{}/tree", server.nfs_address());
        (server, url)
    }

    /// Asserts that `cp` copies a large file unchanged to a URL, that of `tree/NAME`, and back from another.
    #[track_caller]
    pub fn is_copied(&self, to: &str, name: &str, from: &str) {
        let is_whole = |path: &str| fs::read_to_string(self.path(path)).expect("read") == numbers();
        fs::write(self.path("large"), numbers()).expect("write");
        self.run(format!("cp -q large {to}")).succeeded();
        assert!(is_whole(&format!("tree/{name}")), "{to}");
        self.run(format!("cp -q {from} back")).succeeded();
        assert!(is_whole("back"), "{from}");
    }

    /// Runs the program under the name that mount(8) calls.
    pub fn run_mount_helper(&self, line: impl AsRef<str>) -> Ran {
        let helper = self.path("mount.tombolo");
        if !helper.exists() {
            symlink(env!("CARGO_BIN_EXE_tombolo"), &helper).expect("link");
        }
        Ran::new(self.program(&helper, &words(&line)))
    }

    /// Starts a prepared command and reads its output up to `last`.
    pub fn started(&self, mut command: Command, last: &str) -> Server {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("start");
        let mut output = BufReader::new(child.stdout.take().expect("its output"));
        let mut said = String::new();
        while !said.lines().any(|line| line.starts_with(last)) {
            let read = output.read_line(&mut said).expect("read");
            assert!(read > 0, "the server ended: {:?}; it said: {said}", child.wait());
        }
        Server { child, said }
    }
}

/// Returns the number of operations of these names that a server has served at its first export.
pub fn served(top: &serde_json::Value, operations: &[&str]) -> u64 {
    let all = top["exports"][0]["operations"].as_array().expect("operations").iter();
    let wanted = all.filter(|each| operations.iter().any(|operation| each["operation"] == *operation));
    wanted.map(|each| each["count"].as_u64().expect("a count")).sum()
}

/// Splits a command line.
pub fn words(line: &impl AsRef<str>) -> Vec<&str> {
    line.as_ref().split_whitespace().collect()
}

/// A scratch directory whose mount is removed if the test panics. Without FUSE the test fails, unless
/// skipping is allowed.
pub struct MountPlace(pub Scratch);

impl Deref for MountPlace {
    type Target = Scratch;

    fn deref(&self) -> &Scratch {
        &self.0
    }
}

impl MountPlace {
    pub fn new() -> Option<Self> {
        if fs::File::options().read(true).write(true).open("/dev/fuse").is_ok() {
            return Some(Self(Scratch::new()));
        }
        tombolo_skip::skip!("/dev/fuse does not open");
    }

    pub fn mount(&self, options: &str) {
        let mut command = self.tombolo("mount dir:tree mnt -o");
        command.arg(options);
        Ran::new(command).succeeded();
    }

    /// Returns the output of `tombolo top` for the server of `mnt`.
    pub fn top(&self) -> serde_json::Value {
        let value = self.run("top --once --json").succeeded().json();
        let mnt = self.text("mnt");
        let serves = |server: &&serde_json::Value| {
            server["status"]["ways"].as_array().is_some_and(|ways| ways.iter().any(|way| way["at"] == *mnt))
        };
        value["servers"].as_array().and_then(|all| all.iter().find(serves)).expect("its server").clone()
    }

    /// Returns the number of operations of this name served at `mnt`.
    pub fn served(&self, operation: &str) -> u64 {
        served(&self.top(), &[operation])
    }

    /// Returns the logs of background servers.
    pub fn log(&self) -> String {
        let states = fs::read_dir(self.path("state/tombolo")).expect("list").flatten();
        states.filter_map(|state| fs::read_to_string(state.path().join("log")).ok()).collect()
    }

    pub fn umount(&self) {
        self.run("umount mnt").succeeded();
    }

    pub fn mnt(&self) -> PathBuf {
        self.path("mnt")
    }

    /// Unmounts, even if the server is dead.
    pub fn take_away(&self, mount: &Path) {
        drop(Mounted(mount.to_owned()));
    }

    pub fn status(&self) -> serde_json::Value {
        self.top()["status"].take()
    }

    pub fn server_pid(&self) -> u32 {
        self.status()["pid"].as_u64().and_then(|pid| pid.try_into().ok()).expect("a process")
    }

    /// Returns `true` while any process of this mount is running.
    pub fn is_served(&self) -> bool {
        !processes_with(&self.text("mnt")).is_empty()
    }
}

impl Drop for MountPlace {
    fn drop(&mut self) {
        for name in ["mnt", "mnt-2", "mnt-3"] {
            self.take_away(&self.path(name));
        }
    }
}

/// A mount, removed on drop with everything mounted over it, even if its server is dead.
pub struct Mounted(pub PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        while is_mounted(&self.0) {
            let ended = Command::new("umount").arg("-l").arg(&self.0).status();
            if !ended.is_ok_and(|status| status.success()) {
                return;
            }
        }
    }
}

/// A running server, killed on drop.
pub struct Server {
    child: Child,
    pub said: String,
}

impl Server {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns a field of each thread's status (proc_pid_status(5)).
    pub fn of_threads(&self, field: &str) -> Vec<String> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid())).expect("threads");
        let status =
            threads.filter_map(|thread| fs::read_to_string(thread.expect("one").path().join("status")).ok());
        let value = |status: String| {
            status.lines().find_map(|line| line.strip_prefix(field).map(|value| value.trim().to_owned()))
        };
        status.map(|status| value(status).expect("the field")).collect()
    }

    /// Asserts that the output up to the last ready line contains these parts.
    #[track_caller]
    pub fn says(&self, parts: &[impl AsRef<str>]) {
        contains(&self.said, parts);
    }

    /// Returns the address in the ready line of NFS.
    pub fn nfs_address(&self) -> &str {
        self.address_of("ready nfs ")
    }

    /// Returns the address in the ready line of NFS over TLS.
    pub fn nfs_tls_address(&self) -> &str {
        self.address_of("ready nfs-tls ")
    }

    /// Returns the address in the ready line of metrics.
    pub fn metrics_address(&self) -> &str {
        let line = self.said.lines().find_map(|line| line.strip_prefix("ready metrics http://"));
        line.and_then(|line| line.strip_suffix("/metrics")).expect("a line for metrics")
    }

    fn address_of(&self, begins: &str) -> &str {
        let line = self.said.lines().find_map(|line| line.strip_prefix(begins));
        line.and_then(|rest| rest.split(' ').next()).expect("a line for NFS")
    }

    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Stops the server in an orderly way.
    #[track_caller]
    pub fn stop(mut self) {
        self.signal("TERM");
        assert_eq!(self.wait().code(), Some(0));
    }

    /// Kills the server without clean-up.
    pub fn kill(mut self) {
        self.signal("KILL");
        self.wait();
    }

    pub fn wait(&mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                return status;
            }
            assert!(Instant::now() < end, "the server does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Result of a command.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ran {
    pub fn new(mut command: Command) -> Self {
        let output = command.output().expect("run");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// Asserts failure with this code, and one line of error that contains these words.
    #[track_caller]
    pub fn failed(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        let messages = self.messages();
        assert_eq!(messages.len(), 1, "not one line: {self:?}");
        assert!(messages[0].starts_with("tombolo: ") && self.out.is_empty(), "{self:?}");
        contains(&self.err, words);
    }

    /// Asserts success without a message.
    #[track_caller]
    pub fn succeeded(self) -> Self {
        assert!(self.code == Some(0) && self.messages().is_empty(), "{self:?}");
        self
    }

    /// Asserts that the output contains these parts.
    #[track_caller]
    pub fn says(&self, parts: &[impl AsRef<str>]) {
        contains(&self.out, parts);
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).expect("JSON")
    }

    /// Returns the lines of error without warnings of a slow server, which any server is on a busy machine.
    fn messages(&self) -> Vec<&str> {
        let is_of_slowness = |line: &&str| {
            line.contains("not responding, still trying")
                || line.contains(" WARN tombolo_host_rpc::client") && line.ends_with(" OK")
        };
        self.err.lines().filter(|line| !is_of_slowness(line)).collect()
    }
}

/// Asserts that a text contains these parts.
#[track_caller]
pub fn contains(text: &str, parts: &[impl AsRef<str>]) {
    for part in parts.iter().map(AsRef::as_ref) {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

pub fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status().expect("kill(1)");
    assert!(sent.success());
}

/// Returns `true` unless the process has ended or is a zombie.
pub fn lives(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// Returns the processes with this word on their command lines.
pub fn processes_with(word: &str) -> Vec<u32> {
    let all = fs::read_dir("/proc").expect("proc").flatten();
    let has_word = |process: &u32| {
        let words = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).any(|found| found == word.as_bytes())
    };
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(has_word).collect()
}

/// Overwrites a part of an existing file.
pub fn overwrite(path: impl AsRef<Path>, offset: u64, bytes: &[u8]) {
    let file = fs::File::options().write(true).open(path).expect("open");
    file.write_all_at(bytes, offset).expect("write");
}

pub fn is_mounted(path: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("proc");
    let wanted = path.to_str().expect("a path in UTF-8");
    table.lines().any(|line| line.split(' ').nth(4) == Some(wanted))
}

/// Upper bound of any wait on a busy machine; below the time limit of a planted bug (`tests/planted/run`).
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until a condition holds. Pauses grow with the wait, as many conditions run a program.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        let waited = begun.elapsed();
        assert!(waited < PATIENCE, "waited in vain until {what}");
        std::thread::sleep((waited / 4).clamp(Duration::from_millis(1), Duration::from_millis(100)));
    }
}

/// Returns an unused port below the ephemeral range, which starts at 32768. Probing by listening would fail,
/// because other tests' children could inherit the socket.
pub fn free_port(number: u16) -> u16 {
    20_000 + (std::process::id() % 600) as u16 * 20 + number
}

/// Performs one HTTP request.
pub fn http(address: &str, path: &str) -> String {
    let mut stream = std::net::TcpStream::connect(address).expect("connect");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").expect("write");
    let mut said = String::new();
    stream.read_to_string(&mut said).expect("read");
    said
}

/// Returns some megabytes of text without repetitions.
pub fn numbers() -> &'static str {
    static NUMBERS: LazyLock<String> =
        LazyLock::new(|| (0..400_000).map(|number| format!("{number} ")).collect());
    &NUMBERS
}
