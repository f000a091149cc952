//! `tombolo ls`, `cat`, `cp`, `stat` and `rm`, between directories and a real server.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::common::{Ran, Scratch, free_port, signal, until};

/// Creates files of all kinds.
fn plant(top: &Path) {
    fs::create_dir_all(top.join("deep/er")).expect("mkdir");
    for number in 0..300 {
        fs::write(top.join(format!("deep/{number}")), vec![number as u8; number * 50]).expect("write");
    }
    fs::write(top.join("large"), noise(9_000_000)).expect("write");
    fs::write(top.join("deep/er/with space"), "x").expect("write");
    fs::hard_link(top.join("deep/7"), top.join("deep/er/seven")).expect("link");
    symlink("../large", top.join("deep/link")).expect("symlink");
    fs::set_permissions(top.join("deep/3"), PermissionsExt::from_mode(0o750)).expect("chmod");
    let old = SystemTime::UNIX_EPOCH + Duration::new(1_234_567_890, 987_654_321);
    fs::File::open(top.join("deep/3")).expect("open").set_modified(old).expect("utimes");
}

fn noise(len: usize) -> Vec<u8> {
    let mut state = 88_172_645_463_325_252_u64;
    let mut bytes = vec![0; len.next_multiple_of(8)];
    for word in bytes.as_chunks_mut().0 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *word = state.to_le_bytes();
    }
    bytes.truncate(len);
    bytes
}

/// Asserts equal names, modes, contents and link targets; with `exact` also times.
#[track_caller]
fn same(one: &Path, other: &Path, exact: bool) {
    let mut command = Command::new("diff");
    let output = command.args(["-r", "--no-dereference"]).args([one, other]).output().expect("diff(1)");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    if !exact {
        return;
    }
    let facts = |top: &Path| {
        let format = "%P %y %m %U %G %n %TY-%Tm-%Td %TH:%TM:%TS %l\\n";
        let output = Command::new("find").arg(top).args(["-mindepth", "1", "-printf", format]).output();
        let text = String::from_utf8(output.expect("find(1)").stdout).expect("text");
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(facts(one), facts(other));
}

#[test]
fn a_tree_goes_to_a_server_and_back() {
    let scratch = Scratch::new();
    let (_server, url) = scratch.serve_nfs();
    plant(&scratch.path("source"));
    let ran = scratch.run(format!("cp -r -p source {url}/copy")).succeeded();
    assert!(ran.out.starts_with("copied 303 files, 3 directories, 1 link or special file"), "{}", ran.out);
    same(&scratch.path("source"), &scratch.path("tree/copy"), true);
    scratch.run(format!("cp -rpq {url}/copy back")).succeeded();
    same(&scratch.path("source"), &scratch.path("back"), true);
    // Into an existing directory, and the contents of one.
    scratch.run(format!("cp -r source/deep {url}/copy/deep/er")).succeeded();
    same(&scratch.path("source/deep"), &scratch.path("tree/copy/deep/er/deep"), false);
    fs::create_dir(scratch.path("flat")).expect("mkdir");
    scratch.run("cp -r source/. flat").succeeded();
    same(&scratch.path("source"), &scratch.path("flat"), false);
    // From server to server.
    scratch.run(format!("cp -r {url}/copy/large {url}/other")).succeeded();
    assert!(fs::read(scratch.path("tree/other")).expect("read") == noise(9_000_000));
}

#[test]
fn files_are_listed_shown_and_removed() {
    let scratch = Scratch::new();
    plant(&scratch.path("tree"));
    fs::write(scratch.path("tree/.hidden"), "").expect("write");
    fs::write(scratch.path("tree/esc\x1b[2J"), "").expect("write");
    let (_server, url) = scratch.serve_nfs();
    let ran = scratch.run(format!("ls {url}")).succeeded();
    assert_eq!(ran.out, "deep\nesc\\u{1b}[2J\nfile\nlarge\n");
    assert!(scratch.run(format!("ls -a {url}")).out.starts_with(".hidden\n"));
    let ran = scratch.run(format!("ls -l {url}/deep/link {url}/deep/3"));
    let lines: Vec<_> = ran.out.lines().collect();
    assert!(
        lines[0].starts_with("lrwxrwxrwx") && lines[0].ends_with("/deep/link -> ../large"),
        "{}",
        ran.out
    );
    assert!(lines[1].starts_with("-rwxr-x---") && lines[1].contains("2009-02-13 23:31:30Z"), "{}", ran.out);
    let ran = scratch.run(format!("ls -R --json {url}"));
    let list: Vec<serde_json::Value> = serde_json::from_str(&ran.out).expect("JSON");
    assert_eq!(list.len(), 308, "{}", ran.out);
    let ran = scratch.run(format!("ls -R {url}/deep/er {url}"));
    ran.says(&["/deep/er:\nseven\nwith space\n"]);

    let ran = scratch.run(format!("stat --json {url}/deep/3"));
    let facts = ran.json();
    assert_eq!((&facts[0]["mode"], &facts[0]["size"]), (&"0750".into(), &150.into()));
    assert_eq!(
        (&facts[0]["name"], &facts[0]["mtime"]),
        (&"3".into(), &"2009-02-13T23:31:30.987654321Z".into())
    );
    assert!(scratch.run(format!("stat {url}/deep/link")).out.contains("-> ../large"));

    let large = scratch.tombolo(format!("cat {url}/large {url}/file")).output().expect("run");
    assert!(large.status.success() && large.stdout.ends_with(b"content\n"));
    assert!(large.stdout[..9_000_000] == noise(9_000_000));

    scratch.run(format!("rm {}", url_of(&url, "deep"))).failed(1, &["cannot remove", "directory", "use -r"]);
    scratch.run(format!("rm -r {} {}", url_of(&url, "deep"), url_of(&url, "large"))).succeeded();
    assert!(!scratch.path("tree/deep").exists() && !scratch.path("tree/large").exists());
    scratch.run(format!("rm {}", url_of(&url, "none"))).failed(1, &["cannot remove", "no such file"]);
    scratch.run(format!("rm -f {}", url_of(&url, "none"))).succeeded();
    scratch.run(format!("rm -r {url}")).failed(1, &["root of an export"]);
    assert!(scratch.path("tree/file").exists());
}

fn url_of(url: &str, name: &str) -> String {
    format!("{url}/{name}")
}

#[test]
fn a_server_that_is_just_starting_is_waited_for() {
    let scratch = Scratch::new();
    let port = free_port(0);
    let list = scratch.tombolo(format!("ls nfs://127.0.0.1:{port}/tree"));
    let listing = thread::spawn(move || Ran::new(list));
    thread::sleep(Duration::from_millis(300));
    assert!(!listing.is_finished());
    let _server = scratch.serve(format!("serve tree --nfs {}", port));
    let ran = listing.join().expect("joined");
    assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (Some(0), "file\n", ""));
    let begun = Instant::now();
    scratch.run("ls nfs://127.0.0.1:1/x").failed(1, &["refused"]);
    let took = begun.elapsed();
    assert!((Duration::from_secs(2)..Duration::from_secs(5)).contains(&took), "{took:?}");
    scratch.run("ls nfs://127.0.0.1:1/x?retry=0").failed(1, &["refused"]);
}

#[test]
fn cp_reports_each_failure_in_one_line() {
    let scratch = Scratch::new();
    let (_server, url) = scratch.serve_nfs_with("");
    scratch.run("cp nfs://127.0.0.1:1/x .").failed_with_summary(&["127.0.0.1"]);
    scratch
        .run(format!("cp {} .", url_of(&url, "none")))
        .failed_with_summary(&["cannot find", "no such file"]);
    scratch.run("cat nfs://").failed(2, &["nfs://HOST"]);
    scratch.run(format!("ls {}x", url)).failed(1, &["cannot open", "treex"]);
    scratch.run(format!("cat {url}")).failed(1, &["cannot read", "is a directory"]);
    scratch.run(format!("cp {url} here")).failed_with_summary(&["it is a directory; use -r"]);
    scratch.run(format!("cp plain {} nowhere", url_of(&url, "file"))).failed(1, &["it is not a directory"]);
    scratch.run("cp plain missing/name").failed(1, &["missing/name"]);
    // Local root is `nobody` on the server.
    fs::set_permissions(scratch.path("tree"), PermissionsExt::from_mode(0o755)).expect("chmod");
    scratch
        .run(format!("cp plain {}", url_of(&url, "new")))
        .failed_with_summary(&["permission denied", "root squash"]);
    scratch.run(format!("rm {}", url_of(&url, "file"))).failed(1, &["permission denied", "root squash"]);
    // Everything else is copied.
    scratch.run("cp absent plain mnt").failed_with_summary(&["absent"]);
    assert!(scratch.path("mnt/plain").exists());
}

trait WithSummary {
    fn failed_with_summary(&self, words: &[&str]);
}

impl WithSummary for Ran {
    /// Asserts failure with one line of error, and one line of summary.
    #[track_caller]
    fn failed_with_summary(&self, words: &[&str]) {
        assert!(self.out.starts_with("copied ") && self.out.lines().count() == 1, "{self:?}");
        Ran { code: self.code, out: String::new(), err: self.err.clone() }.failed(1, words);
    }
}

#[test]
fn owners_that_a_server_refuses_are_explained_once() {
    let scratch = Scratch::new();
    fs::set_permissions(scratch.path("tree"), PermissionsExt::from_mode(0o777)).expect("chmod");
    let (_server, url) = scratch.serve_nfs_with("");
    fs::create_dir(scratch.path("source")).expect("mkdir");
    for number in 0..20 {
        fs::write(scratch.path(&format!("source/{number}")), "x").expect("write");
    }
    let ran = scratch.run(format!("cp -rp source {}", url_of(&url, "copy")));
    ran.failed_with_summary(&["cannot set owners", "root squash"]);
    assert_eq!(fs::read_dir(scratch.path("tree/copy")).expect("list").count(), 20);
    assert_eq!(fs::metadata(scratch.path("tree/copy/7")).expect("stat").uid(), 65534);
}

#[test]
fn an_interrupted_copy_goes_on() {
    let scratch = Scratch::new();
    let (server, url) = scratch.serve_nfs();
    fs::create_dir(scratch.path("source")).expect("mkdir");
    // Each is longer than the amount in flight.
    for number in 0..2 {
        fs::write(scratch.path(&format!("source/{number}")), noise(120 << 20)).expect("write");
    }
    let mut copying = scratch.tombolo(format!("cp -rp source {}", url_of(&url, "copy")));
    let child = copying.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start");
    let part = |number: usize| scratch.path(&format!("tree/copy/.{number}.tombolo-part"));
    until("something has arrived", || {
        (0..2).any(|number| fs::metadata(part(number)).is_ok_and(|found| found.len() > 8 << 20))
    });
    // Stopped, so that the copy cannot end before the signal.
    server.signal("STOP");
    signal(child.id(), "INT");
    std::thread::sleep(Duration::from_millis(200));
    server.signal("CONT");
    let output = child.wait_with_output().expect("wait");
    assert_eq!(output.status.code(), Some(130));
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(said.contains("SIGINT") && said.contains("and --resume"), "{said}");
    let kept: Vec<_> = (0..2).filter(|&number| part(number).exists()).collect();
    assert!(
        !kept.is_empty() && said.contains("is incomplete: ") && said.contains(" kept for --resume"),
        "{said}{}",
        String::from_utf8_lossy(&output.stdout)
    );
    // The server may lose data that it had not written to disk.
    server.kill();
    let (_server, url) = scratch.serve_nfs();
    // The same command, although the target directory now exists.
    let ran = scratch.run(format!("cp -rp --resume source {}", url_of(&url, "copy"))).succeeded();
    same(&scratch.path("source"), &scratch.path("tree/copy"), true);
    let written = ran.out.split(", ").last().expect("a number").to_owned();
    assert!(!written.starts_with("240.0 MiB"), "nothing was resumed: {}", ran.out);
    let ran = scratch.run(format!("cp -rp --resume source/. {}", url_of(&url, "copy")));
    assert!(ran.out.contains("copied 0 files") && ran.out.contains("2 skipped"), "{}", ran.out);
}

#[test]
fn progress_lines_are_opt_in_and_readers_may_leave() {
    let scratch = Scratch::new();
    let (_server, url) = scratch.serve_nfs();
    fs::write(scratch.path("tree/large"), noise(5 << 20)).expect("write");
    let start = Instant::now();
    let cat = format!("{} cat {url}/large | head -c 10 | wc -c", env!("CARGO_BIN_EXE_tombolo"));
    let ran = Command::new("sh").args(["-c", &cat]).output().expect("run");
    assert_eq!((ran.stdout.trim_ascii(), ran.stderr.as_slice()), (&b"10"[..], &b""[..]));
    assert!(start.elapsed() < Duration::from_secs(10));
    scratch.run(format!("cp -q {} .", url_of(&url, "large"))).succeeded();
    let ran = scratch.run(format!("cp -n --progress {} .", url_of(&url, "large"))).succeeded();
    ran.says(&["1 skipped"]);
}
