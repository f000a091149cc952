//! `tombolo cp` onto existing targets, and its interruption.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use crate::common::{Ran, Scratch, signal, until};

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("list").map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<_> = entries.map(|name| name.into_string().expect("text")).collect();
    names.sort();
    names
}

/// Checks the README's example `tombolo cp -r -p src nfs://nas.example/export/backup`, killed and repeated
/// with --resume.
#[test]
fn cp_resume_continues_into_new_target() {
    let scratch = Scratch::new();
    let (server, url) = scratch.serve_nfs();
    fs::create_dir_all(scratch.path("src/sub")).expect("mkdir");
    fs::write(scratch.path("src/small"), "x").expect("write");
    fs::write(scratch.path("src/sub/large"), vec![7; 150 << 20]).expect("write");
    let backup = format!("{url}/backup");
    let words = format!("cp -r -p src {backup}");
    let mut child = scratch.tombolo(&words).stdout(Stdio::null()).spawn().expect("start");
    let part = scratch.path("tree/backup/sub/.large.tombolo-part");
    until("some of it has arrived", || part.exists());
    server.signal("STOP");
    signal(child.id(), "KILL");
    child.wait().expect("wait");
    server.signal("CONT");
    assert!(!scratch.path("tree/backup/sub/large").exists(), "it was over before it was killed");
    scratch.run(format!("{words} --resume")).succeeded();
    assert_eq!(names(&scratch.path("tree/backup")), ["small", "sub"]);
    assert_eq!(names(&scratch.path("tree/backup/sub")), ["large"]);
    assert_eq!(fs::metadata(scratch.path("tree/backup/sub/large")).expect("stat").len(), 150 << 20);
    let time = |path: &str| fs::metadata(scratch.path(path)).expect("stat").mtime();
    assert_eq!(time("tree/backup"), time("src"));
    // The copy is now an ordinary directory: another copy goes into it.
    scratch.run(format!("cp -r --resume src {backup}")).succeeded();
    assert_eq!(names(&scratch.path("tree/backup/src")), ["small", "sub"]);
    // Likewise on this host, with the target given as the copy's name.
    fs::create_dir(scratch.path("other")).expect("mkdir");
    scratch.run("cp -r -T src other").succeeded();
    assert_eq!(names(&scratch.path("other")), ["small", "sub"]);
}

#[test]
fn cp_writes_into_pipes_devices_and_descriptors() {
    let scratch = Scratch::new();
    fs::write(scratch.path("source"), "contents\n").expect("write");
    // Standard output, a pipe.
    let ran = scratch.run("cp source /dev/stdout");
    assert_eq!((ran.code, &*ran.out, &*ran.err), (Some(0), "contents\n", ""));
    // A named pipe.
    scratch.sh("mkfifo fifo");
    let fifo = scratch.path("fifo");
    let reader = std::thread::spawn(move || fs::read_to_string(fifo).expect("read"));
    scratch.run("cp source fifo").succeeded();
    assert_eq!(reader.join().expect("a reader"), "contents\n");
    assert!(fs::symlink_metadata(scratch.path("fifo")).expect("stat").file_type().is_fifo());
    // A device: one of our own, since overwriting the host's would be noticed.
    scratch.sh("mknod null c 1 3");
    scratch.run("cp source null").succeeded();
    assert!(fs::symlink_metadata(scratch.path("null")).expect("stat").file_type().is_char_device());
    scratch.run("cp source plain null").failed(1, &["null", "not a directory"]);
    scratch.run("cp -r tree null").failed(1, &["tree", "not a file"]);
    // Within a tree they are not replaced either; other files are copied.
    fs::create_dir(scratch.path("from")).expect("mkdir");
    for name in ["fifo", "beside"] {
        fs::write(scratch.path("from").join(name), "x").expect("write");
    }
    fs::rename(scratch.path("fifo"), scratch.path("tree/fifo")).expect("rename");
    let ran = scratch.run("cp -r from/. tree");
    assert!(ran.err.contains("fifo is a pipe, socket or device; remove it first"), "{ran:?}");
    assert_eq!(ran.code, Some(1));
    assert!(fs::symlink_metadata(scratch.path("tree/fifo")).expect("stat").file_type().is_fifo());
    assert!(scratch.path("tree/beside").exists());
    let (_server, url) = scratch.serve_nfs();
    let ran = scratch.run(format!("cp source {url}/fifo"));
    assert!(ran.code == Some(1) && ran.err.contains("is a pipe, socket or device"), "{ran:?}");
}

#[test]
fn cp_follows_a_link_as_target() {
    let scratch = Scratch::new();
    let (_server, url) = scratch.serve_nfs();
    fs::write(scratch.path("source"), "new").expect("write");
    fs::create_dir(scratch.path("tree/dir")).expect("mkdir");
    let here = scratch.text("tree");
    for dir in [here.as_str(), url.as_str()] {
        fs::write(scratch.path("tree/dir/file"), "old").expect("write");
        let _ = fs::remove_file(scratch.path("tree/link"));
        symlink("dir/../dir/file", scratch.path("tree/link")).expect("symlink");
        scratch.run(format!("cp source {dir}/link")).succeeded();
        assert_eq!(fs::read(scratch.path("tree/dir/file")).expect("read"), b"new", "{dir}");
        assert!(fs::symlink_metadata(scratch.path("tree/link")).expect("stat").is_symlink(), "{dir}");
        // A dangling link is neither written through, as with cp(1), nor replaced.
        let _ = fs::remove_file(scratch.path("tree/dangling"));
        symlink("nothing", scratch.path("tree/dangling")).expect("symlink");
        let ran = scratch.run(format!("cp source {dir}/dangling"));
        ran.failed(1, &["a dangling symbolic link", "remove it first"]);
        assert!(!scratch.path("tree/nothing").exists());
        // A copied link replaces a link.
        let _ = fs::remove_file(scratch.path("tree/copied"));
        symlink("dir/file", scratch.path("tree/copied")).expect("symlink");
        symlink("elsewhere", scratch.path("new-link")).expect("symlink");
        scratch.run(format!("cp -a new-link {dir}/copied")).succeeded();
        assert_eq!(fs::read_link(scratch.path("tree/copied")).expect("a link"), Path::new("elsewhere"));
        assert_eq!(fs::read(scratch.path("tree/dir/file")).expect("read"), b"new", "{dir}");
        fs::remove_file(scratch.path("new-link")).expect("remove");
    }
    // A link in an existing target tree is replaced, since it may lead outside.
    fs::create_dir_all(scratch.path("from/dir")).expect("mkdir");
    fs::write(scratch.path("from/dir/out"), "safe").expect("write");
    symlink(scratch.path("source"), scratch.path("tree/dir/out")).expect("symlink");
    scratch.run("cp -r from/dir tree").succeeded();
    assert_eq!(fs::read(scratch.path("source")).expect("read"), b"new");
    assert!(fs::symlink_metadata(scratch.path("tree/dir/out")).expect("stat").is_file());
}

#[test]
fn each_thing_is_named_when_asked_for() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("from")).expect("mkdir");
    fs::write(scratch.path("from/file"), "x").expect("write");
    symlink("file", scratch.path("from/link")).expect("symlink");
    fs::set_permissions(scratch.path("from/file"), PermissionsExt::from_mode(0o640)).expect("chmod");
    let ran = scratch.run("cp -a -v from to").succeeded();
    let mut lines: Vec<_> = ran.out.lines().collect();
    assert!(lines.pop().is_some_and(|line| line.starts_with("copied 1 file, 1 directory, ")), "{}", ran.out);
    lines.sort_unstable();
    assert_eq!(lines, ["from -> to", "from/file -> to/file", "from/link -> to/link"]);
    assert_eq!(fs::metadata(scratch.path("to/file")).expect("stat").mode() & 0o777, 0o640);
}

#[test]
fn failures_of_users_omit_root_remedies() {
    let scratch = Scratch::new();
    for path in ["", "tree", "mnt"] {
        fs::set_permissions(scratch.path(path), PermissionsExt::from_mode(0o777)).expect("chmod");
    }
    let program = scratch.copy_of_program();
    for words in
        [&["ls", "tree"][..], &["cp", "tree/file", "mnt/file"], &["stat", "mnt/file"], &["rm", "mnt/file"]]
    {
        let mut command = scratch.program(&program, words);
        command.uid(65534).gid(65534);
        Ran::new(command).succeeded();
    }
    // The kernel still checks permissions.
    fs::set_permissions(scratch.path("tree/file"), PermissionsExt::from_mode(0o600)).expect("chmod");
    let mut command = scratch.program(&program, &["cat", "tree/file"]);
    command.uid(65534).gid(65534);
    Ran::new(command).failed(1, &["permission denied"]);
}

/// Output of a process, collected as it arrives.
struct Said(Arc<Mutex<Vec<u8>>>);

impl Said {
    fn by(mut pipe: impl Read + Send + 'static) -> Self {
        let said = Arc::<Mutex<Vec<u8>>>::default();
        let heard = said.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = pipe.read(&mut bytes) {
                heard.lock().expect("no panic").extend_from_slice(&bytes[..count]);
            }
        });
        Self(said)
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().expect("no panic")).into_owned()
    }
}

/// Checks the message in the progress bar of a terminal.
#[test]
fn a_silent_server_is_told_of_in_the_bar() {
    let scratch = Scratch::new();
    let (server, url) = scratch.serve_nfs();
    fs::write(scratch.path("tree/large"), vec![1; 150 << 20]).expect("write");
    let words = format!("{} cp {url}/large copy", env!("CARGO_BIN_EXE_tombolo"));
    let mut command = Command::new("script");
    command.args(["-qefc", &words, "/dev/null"]).current_dir(scratch.path(""));
    command.env("TERM", "xterm").env("COLUMNS", "200").env("TOMBOLO_LOG", "error");
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("script(1)");
    let shown = Said::by(child.stdout.take().expect("a pipe"));
    until("some of it has arrived", || scratch.path(".copy.tombolo-part").exists());
    server.signal("STOP");
    until("it is shown", || shown.so_far().contains("server 127.0.0.1 not responding, still trying"));
    server.signal("CONT");
    assert!(child.wait().expect("wait").success(), "{}", shown.so_far());
}

/// Checks that a second SIGTERM ends the copy although the server does not respond.
#[test]
fn second_signal_ends_copy_from_silent_server() {
    let scratch = Scratch::new();
    let (server, url) = scratch.serve_nfs();
    fs::write(scratch.path("tree/large"), vec![1; 150 << 20]).expect("write");
    let mut command = scratch.tombolo(format!("cp {url}/large copy"));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("start");
    let said = Said::by(child.stderr.take().expect("a pipe"));
    until("some of it has arrived", || scratch.path(".copy.tombolo-part").exists());
    server.signal("STOP");
    signal(child.id(), "TERM");
    until("it is told", || said.so_far().contains("not responding"));
    assert!(child.try_wait().expect("wait").is_none(), "it was over before");
    signal(child.id(), "TERM");
    until("it has ended", || child.try_wait().expect("wait").is_some());
    let said = said.so_far();
    assert!(said.contains("SIGTERM: finishing outstanding requests; repeat to end at once"), "{said}");
    assert_eq!(said.matches(" not responding, still trying").count(), 1, "{said}");
    server.signal("CONT");
}
