//! Trees of other hosts through ssh: with a scripted replacement of ssh, and with the real one on this host.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::{MountPlace, Ran, Scratch, contains, free_port, numbers, signal, until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tombolo");

/// Runs the command in its own session, as sshd does, so that it outlives the connection. Records each
/// connection's process. If a file `deaf` exists, output is dropped once the file named in it exists.
const STAND_IN: &str = r#"#!/bin/bash
while [ "$1" != -- ]; do shift; done
shift 2
echo $$ >>"$0.links"
mkfifo "$0.in.$$"
exec 3<&0
cat <&3 >"$0.in.$$" &
exec 3<&-
if [ -e "$0.deaf" ]; then
    setsid -w sh -c "$*" <"$0.in.$$" | while dd bs=64k count=1 of="$0.out.$$" 2>/dev/null && [ -s "$0.out.$$" ]; do
        [ -e "$(cat "$0.deaf")" ] || cat "$0.out.$$"
    done
else
    setsid -w sh -c "$*" <"$0.in.$$" | cat
fi
code=${PIPESTATUS[0]}
kill %1 2>/dev/null
exit "$code"
"#;

/// A host with the tree `tree`, and the command to reach it.
struct Remote<'a> {
    scratch: &'a Scratch,
}

impl<'a> Remote<'a> {
    fn new(scratch: &'a Scratch) -> Self {
        scratch.script("ssh", STAND_IN);
        // Stands for another host.
        fs::create_dir(scratch.path("there")).expect("mkdir");
        Self { scratch }
    }

    fn url(&self, path: &str, options: &str) -> String {
        let program = format!("env XDG_STATE_HOME={} {PROGRAM}", self.scratch.text("there"));
        let program = program.replace(' ', "%20");
        let (ssh, tree) = (self.scratch.text("ssh"), self.scratch.text("tree"));
        format!("nfs+ssh://joe@far.example{tree}{path}?ssh={ssh}&tombolo={program}{options}")
    }

    /// Starts a server process on the remote host with these words, as ssh does.
    fn joined(&self, more: &str) -> Joined {
        let export = format!("{}=/", self.scratch.text("tree"));
        let words = format!("serve --stdio --squash none {export}");
        let mut command = self.scratch.tombolo(format!("{words} {more}"));
        command.env("XDG_STATE_HOME", self.scratch.path("there"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Joined(command.spawn().expect("start"))
    }

    /// Cuts all connections made so far.
    fn cut(&self) {
        // Once each: process ids are reused.
        let links = self.scratch.path("links.cut");
        if fs::rename(self.scratch.path("ssh.links"), &links).is_err() {
            return;
        }
        for link in fs::read_to_string(links).expect("links").lines() {
            let _ = Command::new("kill").args(["-KILL", "--", &format!("-{link}")]).output();
        }
    }

    /// Kills all server processes of the remote host.
    fn kill_servers(&self) {
        let mut pgrep = Command::new("pgrep");
        let found = pgrep.args(["-f", &format!("serve --stdio .*{}=/", self.scratch.text("tree"))]).output();
        for server in String::from_utf8(found.expect("pgrep").stdout).expect("numbers").lines() {
            let _ = Command::new("kill").args(["-KILL", server]).output();
        }
    }

    /// Returns the number of sockets by which the remote processes cooperate.
    fn meeting_places(&self) -> usize {
        let entries = fs::read_dir(self.scratch.path("there/tombolo")).expect("list").flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("stdio-")).count()
    }
}

/// `tombolo serve --stdio`, killed on drop.
struct Joined(Child);

impl Joined {
    /// Performs NFS's NULL and checks the reply.
    fn is_answered(&mut self) {
        let words = [1_u32 << 31 | 40, 7, 0, 2, 100_003, 3, 0, 0, 0, 0, 0];
        let call: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        self.0.stdin.as_mut().expect("its input").write_all(&call).expect("write");
        let mut reply = [0; 28];
        self.0.stdout.as_mut().expect("its output").read_exact(&mut reply).expect("an answer");
        let expected = [1_u32 << 31 | 24, 7, 1, 0, 0, 0, 0];
        assert_eq!(reply.to_vec(), expected.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<_>>());
    }

    fn hang_up(&mut self) {
        drop(self.0.stdin.take());
    }

    /// Asserts that it ends by itself without further output.
    fn ended(mut self) {
        self.hang_up();
        let mut rest = Vec::new();
        self.0.stdout.as_mut().expect("its output").read_to_end(&mut rest).expect("read");
        assert_eq!(self.0.wait().expect("wait").code(), Some(0));
        assert!(rest.is_empty());
    }

    fn failed(mut self, said: &[&str]) {
        assert_eq!(self.0.wait().expect("wait").code(), Some(1));
        let mut all = String::new();
        self.0.stderr.as_mut().expect("its messages").read_to_string(&mut all).expect("text");
        contains(&all, said);
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn files_go_both_ways_through_a_program() {
    let scratch = Scratch::new();
    let remote = Remote::new(&scratch);
    let url = |options: &str| remote.url("/it's%20here", options);
    scratch.is_copied(&url("&nconnect=3"), "it's here", &url(""));
    let listed = scratch.run(format!("ls {}", remote.url("", "")));
    assert_eq!((listed.out.as_str(), listed.code), ("file\nit's here\n", Some(0)), "{listed:?}");
    until("the server there has ended", || remote.meeting_places() == 0);
}

#[test]
fn remote_ssh_failures_are_one_line() {
    let scratch = Scratch::new();
    let remote = Remote::new(&scratch);
    let cat = |url: &str| scratch.run(format!("cat {url}"));
    cat(&remote.url("/none", "")).failed(1, &["no such file"]);
    let no_program = remote.url("/file", "&tombolo=/no/tombolo");
    cat(&no_program).failed(1, &["/no/tombolo", "install tombolo on that host", "tombolo=PROGRAM"]);
    let no_ssh = remote.url("/file", "&ssh=/no/ssh");
    cat(&no_ssh).failed(1, &["cannot run /no/ssh", "install the OpenSSH client"]);
    scratch.run(format!("mount {} mnt", remote.url("/none", ""))).failed(1, &["none: No such file"]);
    scratch.run("serve --stdio tree --nfs 0").failed(2, &["--stdio excludes other front ends"]);
    scratch.run("serve --stdio tree --allow ::/0").failed(2, &["--allow requires --nfs"]);
}

#[test]
fn ls_over_ssh_makes_no_other_connection() {
    let scratch = Scratch::new();
    let server = scratch.serve("serve tree --nfs 127.0.0.1:0");
    let url = format!("nfs+ssh://{}/?ssh=false", server.nfs_address());
    scratch.run(format!("ls {url}")).failed(1, &["false ended with code 1"]);
    server.stop();
}

#[test]
fn stdio_processes_share_server_until_last_ends() {
    let scratch = Scratch::new();
    let remote = Remote::new(&scratch);
    let mut first = remote.joined("");
    first.is_answered();
    let mut second = remote.joined("");
    second.is_answered();
    let servers = scratch.run("top --once --json").out;
    let servers: serde_json::Value = serde_json::from_str(&servers).expect("JSON");
    assert_eq!(servers["servers"].as_array().map(Vec::len), Some(1), "{servers}");
    assert_eq!(servers["servers"][0]["status"]["ways"][0]["at"], "stdio", "{servers}");
    remote.joined("--read-only").failed(&["in use by another server", "other options", "--state DIR"]);
    first.hang_up();
    // It has checked for other processes at least once.
    thread::sleep(std::time::Duration::from_millis(1500));
    second.is_answered();
    second.ended();
    first.ended();
    assert_eq!(remote.meeting_places(), 0);
    let mut other = remote.joined("--read-only");
    other.is_answered();
    other.ended();
}

#[test]
fn a_server_that_is_killed_is_followed_by_another() {
    let scratch = Scratch::new();
    let remote = Remote::new(&scratch);
    let (mut first, mut second) = (remote.joined(""), remote.joined(""));
    first.is_answered();
    second.is_answered();
    for mut each in [first, second] {
        let _ = each.0.kill();
    }
    let mut third = remote.joined("");
    third.is_answered();
    signal(third.0.id(), "TERM");
    third.ended();
    assert_eq!(remote.meeting_places(), 0);
}

/// Runs `work`, which creates the remote file `made`, and cuts the connections before its reply arrives.
fn answered_late(
    remote: &Remote<'_>,
    made: &Path,
    work: impl FnOnce() -> std::io::Result<()> + Send + 'static,
    cut: impl FnOnce(),
) {
    let mark = remote.scratch.path("ssh.deaf");
    fs::write(&mark, made.to_str().expect("text")).expect("write");
    remote.cut();
    let working = thread::spawn(work);
    until("it is done there", || made.exists());
    thread::sleep(std::time::Duration::from_millis(300));
    assert!(!working.is_finished(), "it was answered");
    fs::remove_file(&mark).expect("remove");
    cut();
    working.join().expect("join").expect("done once, though asked twice");
}

#[test]
fn file_commands_give_up_on_silent_host() {
    let scratch = Scratch::new();
    let remote = Remote::new(&scratch);
    fs::write(scratch.path("tree/big"), vec![7; 64 << 20]).expect("write");
    fs::write(scratch.path("ssh.deaf"), scratch.text("mark")).expect("write");
    let mut cat = scratch.tombolo(format!("cat --wait 1 {}", remote.url("/big", "")));
    let mut cat = cat.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start");
    cat.stdout.as_mut().expect("its output").read_exact(&mut [0]).expect("begun");
    fs::write(scratch.path("mark"), "").expect("write");
    let output = cat.wait_with_output().expect("wait");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("timed out"), "{said}");
}

#[test]
fn retransmission_over_another_link_executes_once() {
    let Some(place) = MountPlace::new() else { return };
    let remote = Remote::new(&place.0);
    place.run(format!("mount {} mnt", remote.url("", "&nconnect=2"))).succeeded();
    let (here, there) = (place.mnt(), place.path("tree"));
    // First the same server replies, then another with the state on disk.
    for is_killed in [false, true] {
        let cut = || if is_killed { remote.kill_servers() } else { remote.cut() };
        let keeper = (!is_killed).then(|| {
            let mut keeper = remote.joined("");
            keeper.is_answered();
            keeper
        });
        let name = format!("made-{is_killed}");
        let (dir, new) = (here.join(&name), here.join(format!("{name}-new")));
        let made = dir.clone();
        answered_late(&remote, &there.join(&name), move || fs::create_dir(made), cut);
        answered_late(&remote, &there.join(format!("{name}-new")), move || fs::rename(dir, new), cut);
        drop(keeper);
    }
    place.umount();
    until("no process is left", || remote.meeting_places() == 0);
}

#[test]
fn ssh_cuts_lose_and_duplicate_nothing() {
    let Some(place) = MountPlace::new() else { return };
    let remote = Remote::new(&place.0);
    place.run(format!("mount {} mnt", remote.url("", "&nconnect=3"))).succeeded();
    let mnt = place.mnt();
    let kept = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&kept);
    let working = thread::spawn(move || {
        for number in 0..60 {
            let dir = mnt.join(format!("dir-{number}"));
            fs::create_dir(&dir)?;
            fs::write(dir.join("new"), numbers().get(..number * 2000).expect("so much"))?;
            fs::rename(dir.join("new"), dir.join("kept"))?;
            counted.store(number + 1, Ordering::Relaxed);
        }
        std::io::Result::Ok(())
    });
    // Work progresses between two cuts, however slow a connection is.
    let mut before = 0;
    for cut in 0..20 {
        until("work goes on", || kept.load(Ordering::Relaxed) > before || working.is_finished());
        before = kept.load(Ordering::Relaxed);
        thread::sleep(Duration::from_millis(cut % 5 * 10));
        remote.cut();
    }
    working.join().expect("join").expect("all work");
    place.umount();
    for number in 0..60 {
        let kept = fs::read_to_string(place.path(&format!("tree/dir-{number}/kept"))).expect("read");
        assert!(kept == numbers()[..number * 2000], "{number}");
    }
}

#[test]
fn a_proxy_caches_what_is_behind_ssh() {
    let Some(place) = MountPlace::new() else { return };
    let remote = Remote::new(&place.0);
    // `=/` would start the export's name.
    let url = remote.url("", "").replace("=/", "=%2F");
    let proxy = place.serve(format!("proxy {url} --cache cache --fuse mnt --control proxy.sock"));
    assert_eq!(fs::read_to_string(place.mnt().join("file")).expect("read"), "content\n");
    remote.cut();
    fs::write(place.mnt().join("file"), "changed\n").expect("write");
    assert_eq!(fs::read_to_string(place.path("tree/file")).expect("read"), "changed\n");
    proxy.stop();
}

/// An OpenSSH daemon on this host, with new keys.
struct Sshd {
    child: Child,
    /// ssh command of the client.
    command: String,
    port: u16,
}

impl Sshd {
    /// Starts the daemon; `None` without OpenSSH, if skipping is allowed.
    fn new(scratch: &Scratch) -> Option<Self> {
        let sshd = Path::new("/usr/sbin/sshd");
        if !sshd.exists() {
            tombolo_skip::skip!("OpenSSH's server is missing");
        }
        // Exists where the system's daemon runs.
        let _ = fs::create_dir("/run/sshd");
        for key in ["host-key", "user-key"] {
            scratch.sh(&format!("ssh-keygen -q -t ed25519 -N '' -f {key}"));
        }
        let port = free_port(19);
        let config = format!(
            "ListenAddress 127.0.0.1\nPort {port}\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin yes\n",
            scratch.text("host-key"),
            scratch.text("user-key.pub"),
        );
        fs::write(scratch.path("sshd.conf"), config).expect("write");
        let host_key = fs::read_to_string(scratch.path("host-key.pub")).expect("read");
        fs::write(scratch.path("known"), format!("[127.0.0.1]:{port} {host_key}")).expect("write");
        let mut daemon = Command::new(sshd);
        daemon.args(["-D", "-E", &scratch.text("sshd.log"), "-f", &scratch.text("sshd.conf")]);
        let child = daemon.spawn().expect("start");
        until("sshd listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        let (key, known) = (scratch.text("user-key"), scratch.text("known"));
        let command = format!("ssh -F none -i {key} -o UserKnownHostsFile={known}");
        Some(Self { child, command, port })
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn openssh_leads_there() {
    let Some(place) = MountPlace::new() else { return };
    let scratch = &place.0;
    let Some(sshd) = Sshd::new(scratch) else { return };
    fs::create_dir(scratch.path("there")).expect("mkdir");
    let options = |ssh: &str| {
        let there = scratch.text("there");
        let program = format!("env XDG_STATE_HOME={there} XDG_RUNTIME_DIR={there} {PROGRAM}");
        format!("ssh={ssh}&tombolo={program}").replace(' ', "%20")
    };
    let url = |path: &str, ssh: &str| {
        format!("nfs+ssh://127.0.0.1:{}{}{path}?{}", sshd.port, scratch.text("tree"), options(ssh))
    };
    let mount = url("", &sshd.command) + "&nconnect=3";
    fs::write(scratch.path("much"), numbers()).expect("write");
    scratch.run(format!("cp much {}", url("/much", &sshd.command))).succeeded();
    assert!(fs::read_to_string(scratch.path("tree/much")).expect("read") == numbers());
    scratch.run(format!("mount {mount} mnt")).succeeded();
    assert!(fs::read_to_string(place.mnt().join("much")).expect("read") == numbers());
    // All connections, by the mount's ssh processes.
    let links = Ran::new({
        let mut pgrep = Command::new("pgrep");
        pgrep.args(["-f", &format!("^ssh .*{}", scratch.text("user-key"))]);
        pgrep
    });
    assert!(links.out.lines().count() >= 3, "{links:?}");
    links.out.lines().for_each(|link| signal(link.parse().expect("a number"), "KILL"));
    fs::create_dir(place.mnt().join("after")).expect("mkdir");
    assert!(scratch.path("tree/after").is_dir());
    place.umount();
    let denied = url("/much", &sshd.command.replace("user-key", "host-key"));
    scratch.run(format!("cat {denied}")).failed(1, &["Permission denied", "enable non-interactive login"]);
    fs::write(scratch.path("known"), "").expect("write");
    scratch
        .run(format!("cat {}", url("/much", &sshd.command)))
        .failed(1, &["Host key verification failed", "manually once"]);
}
