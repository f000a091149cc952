//! `tombolo ls`, `mkdir`, `mv` and `du`, on this host and on a server.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::{Child, Output, Stdio};
use std::thread;
use std::time::{Duration, SystemTime};

use crate::common::{Scratch, until};

#[test]
fn listings_are_sorted_and_shown_as_asked_for() {
    let scratch = Scratch::new();
    let (_server, url) = scratch.serve_nfs();
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    for (name, size, age) in [("a", 10, 3), ("b", 2_500_000, 1), ("c", 2048, 2)] {
        fs::write(scratch.path("tree").join(name), vec![1; size]).expect("write");
        let file = fs::File::open(scratch.path("tree").join(name)).expect("open");
        file.set_modified(old - Duration::from_secs(age)).expect("utimes");
    }
    fs::remove_file(scratch.path("tree/file")).expect("remove");
    for what in ["tree", &url] {
        let listed = |words: &str| scratch.run(format!("ls {words} {what}")).succeeded().out;
        assert_eq!(listed("-t"), "b\nc\na\n");
        assert_eq!(listed("-tr"), "a\nc\nb\n");
        assert_eq!(listed("-S"), "b\nc\na\n");
        let sizes = listed("-lh");
        let sizes: Vec<_> =
            sizes.lines().map(|line| line.split_whitespace().nth(4).expect("a size")).collect();
        assert_eq!(sizes, ["10", "2.4M", "2.0K"]);
        assert_eq!(listed("-d"), format!("{what}\n"));
        assert!(listed("-ld").starts_with('d'));
        let list: Vec<serde_json::Value> = serde_json::from_str(&listed("--json -S")).expect("JSON");
        assert_eq!((&list[0]["name"], &list[0]["path"]), (&"b".into(), &format!("{what}/b").into()));
        assert_eq!(list[0]["mtime"], "2001-09-09T01:46:39.000000000Z");
    }
    assert!(scratch.run("ls --help").out.contains("List directories"));
}

#[test]
fn the_exports_of_a_server_are_listed() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("more")).expect("mkdir");
    let server = scratch.serve("serve tree more --nfs 127.0.0.1:0 --state nfs-state");
    let host = server.nfs_address();
    let ran = scratch.run(format!("ls nfs://{host}/")).succeeded();
    assert_eq!(ran.out, "/more\n/tree\n");
    let ran = scratch.run(format!("ls --json nfs://{host}/"));
    let list: Vec<serde_json::Value> = serde_json::from_str(&ran.out).expect("JSON");
    assert_eq!((&list[1]["name"], &list[1]["path"]), (&"/tree".into(), &format!("nfs://{host}/tree").into()));
    scratch.run(format!("ls -R nfs://{host}/")).failed(1, &["name one of its exports"]);
}

#[test]
fn directories_are_made() {
    let scratch = Scratch::new();
    let (_server, url) = scratch.serve_nfs();
    let here = scratch.text("tree/here");
    let there = format!("{url}/there");
    fs::create_dir(scratch.path("tree/here")).expect("mkdir");
    fs::create_dir(scratch.path("tree/there")).expect("mkdir");
    for (dir, name) in [(&here, "here"), (&there, "there")] {
        let path = |below: &str| scratch.path("tree").join(name).join(below);
        scratch.run(format!("mkdir {dir}/a")).succeeded();
        scratch.run(format!("mkdir {dir}/a")).failed(1, &["cannot create", "exists"]);
        scratch.run(format!("mkdir {dir}/x/y")).failed(1, &["cannot create"]);
        let ran = scratch.run(format!("mkdir -pv -m 2751 {dir}/a/b/c")).succeeded();
        assert_eq!(ran.out, format!("{dir}/a/b/c\n"));
        let mode = |below: &str| fs::metadata(path(below)).expect("stat").mode() & 0o7777;
        assert_eq!((mode("a/b") & 0o700, mode("a/b/c")), (0o700, 0o2751));
        scratch.run(format!("mkdir -p {dir}/a/b/c")).succeeded();
        fs::write(path("file"), "").expect("write");
        scratch.run(format!("mkdir -p {dir}/file/below")).failed(1, &["cannot create"]);
        scratch.run(format!("mkdir -p {dir}/file")).failed(1, &["cannot create"]);
    }
    scratch.run("mkdir -m 8 x").failed(2, &["octal digits"]);
}

#[test]
fn mv_works_within_and_across_exports() {
    let scratch = Scratch::new();
    let (_server, url) = scratch.serve_nfs();
    let tree = |name: &str| scratch.path("tree").join(name);
    let there = |name: &str| format!("{url}/{name}");
    // A rename keeps the inode.
    let number = fs::metadata(tree("file")).expect("stat").ino();
    scratch.run(format!("mv {} {}", there("file"), there("renamed"))).succeeded();
    assert_eq!(fs::metadata(tree("renamed")).expect("stat").ino(), number);
    fs::create_dir(tree("dir")).expect("mkdir");
    scratch.run(format!("mv {} {}", there("renamed"), there("dir"))).succeeded();
    scratch.run(format!("mv {} {url}", there("dir/renamed"))).succeeded();
    assert_eq!(fs::metadata(tree("renamed")).expect("stat").ino(), number, "into the top of the export");
    // A tree is moved to this host and back.
    symlink("renamed", tree("dir/link")).expect("symlink");
    fs::set_permissions(tree("renamed"), PermissionsExt::from_mode(0o604)).expect("chmod");
    scratch.run(format!("mv {} {} mnt", there("dir"), there("renamed"))).succeeded();
    assert!(!tree("dir").exists() && !tree("renamed").exists());
    assert_eq!(fs::metadata(scratch.path("mnt/renamed")).expect("stat").mode() & 0o777, 0o604);
    assert!(fs::symlink_metadata(scratch.path("mnt/dir/link")).expect("stat").is_symlink());
    scratch.run(format!("mv mnt/dir {}", there("back"))).succeeded();
    assert!(fs::symlink_metadata(tree("back/link")).expect("stat").is_symlink());
    assert!(!scratch.path("mnt/dir").exists());
    // Existing files are retained on request, and directories are never merged.
    fs::write(scratch.path("one"), "one").expect("write");
    fs::write(tree("two"), "two").expect("write");
    scratch.run(format!("mv -n one {}", there("two"))).succeeded();
    assert_eq!((fs::read(tree("two")).expect("read"), scratch.path("one").exists()), (b"two".to_vec(), true));
    scratch.run(format!("mv -T mnt {}", there("back"))).failed(1, &["it exists", "cp -a"]);
    scratch.run(format!("mv one plain {}", there("two"))).failed(1, &["not a directory", "several sources"]);
    scratch.run(format!("mv {} x", there("none"))).failed(1, &["none", "no such file"]);
    scratch.run(format!("mv {url} x")).failed(1, &["root of an export"]);
    // On this host.
    scratch.run("mv one mnt").succeeded();
    scratch.run("mv mnt/one two").succeeded();
    assert_eq!(fs::read(scratch.path("two")).expect("read"), b"one");
}

/// Checks that a moved file's copy is another file before the source is removed.
#[test]
fn nothing_is_lost_by_a_move_that_copies() {
    let scratch = Scratch::new();
    let (server, url) = scratch.serve_nfs();
    let tree = |name: &str| scratch.path("tree").join(name);
    let there = |name: &str| format!("{url}/{name}");
    // One file by two routes.
    fs::write(tree("same"), "all that there is").expect("write");
    let other_name = there("same").replace("127.0.0.1", "localhost");
    for (from, to) in
        [("tree/same", &*there("same")), (&*there("same"), "tree/same"), (&*there("same"), &*other_name)]
    {
        scratch.run(format!("mv {from} {to}")).failed(1, &["same", "the same file"]);
        assert_eq!(fs::read(tree("same")).expect("read"), b"all that there is", "{from} {to}");
    }
    // A device accepts no data; one of our own, since overwriting the host's would be noticed.
    scratch.sh("mknod null c 1 3");
    scratch.run(format!("mv {} null", there("same"))).failed(1, &["null is a pipe, socket or device"]);
    assert_eq!(fs::read(tree("same")).expect("read"), b"all that there is");
    // A link is replaced, as by rename(2), not its target.
    fs::write(scratch.path("kept"), "kept").expect("write");
    for (number, leads_to) in ["kept", "nowhere", "mnt"].into_iter().enumerate() {
        let source = format!("source{number}");
        fs::write(tree(&source), &source).expect("write");
        symlink(leads_to, scratch.path("link")).expect("symlink");
        scratch.run(format!("mv -T {} link", there(&source))).succeeded();
        let link = scratch.path("link");
        assert!(fs::symlink_metadata(&link).expect("stat").is_file() && !tree(&source).exists());
        assert_eq!(fs::read_to_string(&link).expect("read"), source);
        fs::remove_file(link).expect("remove");
    }
    assert_eq!(fs::read(scratch.path("kept")).expect("read"), b"kept");
    symlink("file", tree("link")).expect("symlink");
    scratch.run(format!("mv kept {}", there("link"))).succeeded();
    assert!(!fs::symlink_metadata(tree("link")).expect("stat").is_symlink());
    // A source that changes during the copy is retained.
    fs::write(scratch.path("large"), vec![7; 150 << 20]).expect("write");
    let to = there("large");
    let child = scratch.tombolo(format!("mv large {to}")).stderr(Stdio::piped()).spawn().expect("start");
    until("some of it has arrived", || tree(".large.tombolo-part").exists());
    server.signal("STOP");
    assert!(!tree("large").exists(), "it was over before it could change");
    fs::set_permissions(scratch.path("large"), PermissionsExt::from_mode(0o640)).expect("chmod");
    server.signal("CONT");
    let ran = child.wait_with_output().expect("wait");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.code() == Some(1) && said.contains("the source has changed since"), "{said}");
    assert_eq!(fs::metadata(scratch.path("large")).expect("stat").len(), 150 << 20);
}

#[test]
fn space_is_summed_up() {
    let scratch = Scratch::new();
    let (_server, url) = scratch.serve_nfs();
    fs::create_dir_all(scratch.path("tree/a/b")).expect("mkdir");
    fs::write(scratch.path("tree/a/large"), vec![1; 3 << 20]).expect("write");
    fs::hard_link(scratch.path("tree/a/large"), scratch.path("tree/a/again")).expect("link");
    // Output of du(1) for the same tree.
    let du = std::process::Command::new("du").arg("-k").arg(scratch.path("tree")).output().expect("du(1)");
    let du = String::from_utf8(du.stdout).expect("text");
    let ran = scratch.run(format!("du {}", scratch.text("tree"))).succeeded();
    let sorted = |text: &str| {
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    assert_eq!(sorted(&ran.out), sorted(&du));
    let ran = scratch.run(format!("du -sh {url}"));
    assert_eq!(ran.out, format!("3.1M\t{url}\n"));
    assert_eq!(scratch.run(format!("du {url}/a/large")).out, format!("3072\t{url}/a/large\n"));
}

/// Copies a file to a pipe; the copy has begun, and ends only when the pipe is read.
fn cat(scratch: &Scratch, wait: &str, file: &str) -> (Child, Vec<u8>) {
    let mut cat = scratch.tombolo(format!("cat --wait {wait} {file}"));
    let mut cat = cat.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start");
    let mut first = vec![0; 1];
    cat.stdout.as_mut().expect("its output").read_exact(&mut first).expect("begun");
    (cat, first)
}

fn ended(cat: Child) -> (Output, String) {
    let output = cat.wait_with_output().expect("wait");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, said)
}

#[test]
fn file_commands_wait_for_dead_server_as_requested() {
    const BYTES: usize = 64 << 20;
    let scratch = Scratch::new();
    fs::write(scratch.path("tree/big"), vec![7; BYTES]).expect("write");
    let (server, url) = scratch.serve_nfs();
    let big = format!("{url}/big");
    let (given_up, _) = cat(&scratch, "1", &big);
    let (patient, _) = cat(&scratch, "forever", &big);
    server.signal("STOP");
    let (output, said) = ended(given_up);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("timed out") && said.contains("--wait forever"), "{said}");
    let file = format!("{url}/file");
    for line in [
        format!("ls --wait 1 {url}"),
        format!("stat --wait 1 {file}"),
        format!("cp --wait 1 {file} copy"),
        format!("rm --wait 1 {file}"),
        format!("mkdir --wait 1 {url}/new"),
        format!("disk info --wait 1 {file}"),
        format!("disk check --wait 1 {file}"),
        format!("disk convert --wait 1 {file} disk.img"),
        format!("image list --wait 1 {url}"),
    ] {
        let ran = scratch.run(&line);
        assert_eq!(ran.code, Some(1), "{line}: {ran:?}");
    }
    let waiting = thread::spawn(move || ended(patient));
    thread::sleep(Duration::from_secs(3));
    assert!(!waiting.is_finished(), "it waits");
    server.signal("CONT");
    let (output, said) = waiting.join().expect("no panic");
    assert!(output.status.success() && output.stdout.len() == BYTES - 1, "{said}");
    server.stop();

    let server = scratch.serve_shm("");
    let big = format!("shm:{}/tree/big", scratch.text("link.sock"));
    let (given_up, _) = cat(&scratch, "1", &big);
    let (patient, _) = cat(&scratch, "forever", &big);
    // Its process lives, and says nothing.
    server.signal("STOP");
    let (output, said) = ended(given_up);
    assert!(output.status.code() == Some(1) && said.contains("timed out"), "{said}");
    server.signal("CONT");
    let (output, said) = ended(patient);
    assert!(output.status.success() && output.stdout.len() == BYTES - 1, "{said}");
    let (given_up, _) = cat(&scratch, "1", &big);
    server.kill();
    let (output, said) = ended(given_up);
    assert!(output.status.code() == Some(1) && said.contains("timed out"), "{said}");
    scratch.run("ls --wait soon tree").failed(2, &["a number of seconds", "forever"]);
}
