//! `tombolo serve --shm` and its clients, from the view of users. Mounting needs /dev/fuse and the right to
//! mount.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::process::Stdio;

use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;

use crate::common::{MountPlace, Scratch, contains, is_mounted, numbers, until};

#[test]
fn shm_server_prints_hints_and_leaves_nothing() {
    let scratch = Scratch::new();
    let before = scratch.listing();
    let server = scratch.serve("serve tree mnt=/other --shm link.sock --shm one,export=/other");
    let (link, one) = (scratch.text("link.sock"), scratch.text("one"));
    server.says(&[
        format!("ready shm {link} export=/tree\n  this host:  tombolo mount shm:{link}/tree /mnt\n"),
        format!("ready shm {link} export=/other\n  this host:  tombolo mount shm:{link}/other /mnt\n"),
        format!("ready shm {one} export=/other\n"),
    ]);
    assert!(!server.said.contains(&format!("ready shm {one} export=/tree")), "{}", server.said);
    let metadata = scratch.path("link.sock").metadata().expect("a socket");
    assert!(metadata.file_type().is_socket() && metadata.permissions().mode() & 0o777 == 0o600);
    let top = scratch.run("top --once").succeeded();
    top.says(&[format!("/tree by shm {link}")]);
    scratch.run("ls shm:one/tree").failed(1, &["shm:one/tree", "no such export"]);
    let nameless = scratch.run(format!("mount shm:{link} mnt"));
    nameless.failed(1, &["the name of an export is missing", "shm:SOCKET/NAME"]);
    server.stop();
    assert_eq!(scratch.listing(), before);
}

#[test]
fn files_are_listed_read_and_copied() {
    let scratch = Scratch::new();
    let server = scratch.serve_shm("");
    scratch.is_copied("shm:link.sock/tree/dir", "dir", "shm:link.sock/tree/dir");
    let listed = scratch.run("ls shm:link.sock/tree");
    assert_eq!((listed.code, listed.out.as_str()), (Some(0), "dir\nfile\n"), "{listed:?}");
    assert_eq!(scratch.run("cat shm:link.sock/tree/file").out, "content\n");
    scratch.run("rm shm:link.sock/tree/dir").succeeded();
    assert!(!scratch.path("tree/dir").exists());
    // A rename, not a copy; and no tree is copied into itself.
    let number =
        |name: &str| std::os::unix::fs::MetadataExt::ino(&fs::metadata(scratch.path(name)).expect("stat"));
    let before = number("tree/file");
    scratch.run("mv shm:link.sock/tree/file shm:link.sock/tree/moved").succeeded();
    assert_eq!(number("tree/moved"), before);
    scratch.run("mkdir -p shm:link.sock/tree/a/b").succeeded();
    for (top, into) in [("shm:link.sock/tree", "a"), ("shm:link.sock/tree/a", "b")] {
        let ran = scratch.run(format!("cp -r {top} {top}/{into}/copy"));
        assert!(ran.code == Some(1) && ran.err.contains("the copy lies within it"), "{ran:?}");
    }
    server.stop();
}

#[test]
fn nested_export_takes_precedence() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("tree/in")).expect("mkdir");
    fs::write(scratch.path("tree/in/outer"), "outer\n").expect("write");
    fs::write(scratch.path("mnt/inner"), "inner\n").expect("write");
    let server = scratch.serve("serve tree=/a mnt=/a/in --shm s --shm-file r,size=1M");
    for front in ["shm:s", "shm+file:r"] {
        for (path, content) in [("a/in/inner", "inner\n"), ("a/file", "content\n")] {
            assert_eq!(scratch.run(format!("cat {front}/{path}")).out, content, "{front}/{path}");
        }
        let listed = scratch.run(format!("ls {front}/a/in"));
        assert_eq!((listed.code, listed.out.as_str()), (Some(0), "inner\n"), "{listed:?}");
        let none = scratch.run(format!("ls {front}/none/file"));
        none.failed(1, &["no such export"]);
        assert!(!none.err.contains("export:") && !none.err.contains(": ;"), "{none:?}");
    }
    server.stop();
}

#[test]
fn state_survives_a_restart_and_is_shared_with_nfs() {
    let scratch = Scratch::new();
    let words = "serve tree --shm link.sock --control serve.sock --state kept";
    scratch.serve(words).stop();
    let keys = fs::read(scratch.path("kept/tree/handle-keys")).expect("keys");
    assert!(scratch.path("kept/tree/replies-tree").metadata().expect("the file").len() > 0);
    assert_eq!(scratch.run("keys list --state kept").out, "1  signs\n");
    scratch.serve(format!("{words} --nfs 0")).stop();
    assert!(fs::read(scratch.path("kept/tree/handle-keys")).expect("keys") == keys);
    scratch.run("keys rotate --state kept").succeeded();
    let server = scratch.serve(words);
    assert_eq!(scratch.run("cat shm:link.sock/tree/file").out, "content\n");
    scratch
        .run("serve tree --shm other.sock --control other --state kept")
        .failed(1, &["in use", "--state DIR"]);
    // Others of the same tree need no state directory.
    let others =
        ["second", "third"].map(|name| scratch.serve(format!("serve tree --shm {name} --control {name}.c")));
    for socket in ["second", "third"] {
        assert_eq!(scratch.run(format!("cat shm:{socket}/tree/file")).out, "content\n", "{socket}");
    }
    drop((server, others));
    scratch.run("serve tree --virtiofs s --state kept").failed(2, &["--state", "--nfs PORT", "--shm SOCKET"]);
}

#[test]
fn an_export_is_mounted_used_and_gone() {
    let Some(scratch) = MountPlace::new() else { return };
    let server = scratch.serve_shm("");
    let before = scratch.listing();
    for options in ["rw", "doorbell=event", "doorbell=poll,allow_other", "coherence=strict,threads=3"] {
        scratch.run(format!("mount shm:link.sock/tree mnt -o {options}")).succeeded();
        assert_eq!(fs::read_to_string(scratch.mnt().join("file")).expect("read"), "content\n", "{options}");
        let large = numbers();
        fs::write(scratch.mnt().join("new"), large).expect("write");
        symlink("new", scratch.mnt().join("link")).expect("a link");
        assert!(fs::read_to_string(scratch.path("tree/new")).expect("read") == large, "{options}");
        assert!(fs::read_to_string(scratch.mnt().join("link")).expect("read") == large, "{options}");
        assert_eq!(fs::read_dir(scratch.mnt()).expect("list").count(), 3, "{options}");
        for name in ["new", "link"] {
            fs::remove_file(scratch.mnt().join(name)).expect("remove");
        }
        scratch.umount();
        assert!(!is_mounted(&scratch.mnt()));
    }
    until("the supervisors have ended", || !scratch.is_served());
    assert_eq!(scratch.listing(), before);
    server.stop();
}

#[test]
fn without_xattrs_no_client_sees_any() {
    let Some(place) = MountPlace::new() else { return };
    let name = "user.comment";
    setxattr(place.path("tree/file"), name, b"seen", XattrFlags::empty()).expect("set");
    let found = |source: &str, options: &str| {
        place.run(format!("mount {source} mnt -o {options}")).succeeded();
        let found = getxattr(place.mnt().join("file"), name, &mut [0; 16]);
        place.umount();
        found
    };
    for (more, suffix, shown) in
        [("", "", Ok(4)), ("--xattrs off", " xattrs=off hides=acls,capabilities", Err(Errno::OPNOTSUPP))]
    {
        let server = place.serve_shm(more);
        server.says(&[format!(" export=/tree{suffix}\n")]);
        assert_eq!(found("shm:link.sock/tree", "rw"), shown);
        assert_eq!(found("shm:link.sock/tree", "xattrs=off"), Err(Errno::OPNOTSUPP));
        server.stop();
    }
    assert_eq!(found("dir:tree", "xattrs=on"), Ok(4));
    assert_eq!(found("dir:tree", "xattrs=off"), Err(Errno::OPNOTSUPP));
}

#[test]
fn refused_changes_are_refused_on_either_side() {
    let Some(scratch) = MountPlace::new() else { return };
    for (served, mounted) in [("--read-only", "rw"), ("", "ro")] {
        let server = scratch.serve_shm(served);
        scratch.run(format!("mount shm:link.sock/tree mnt -o {mounted}")).succeeded();
        let refused = fs::write(scratch.mnt().join("new"), "x").expect_err("read-only").kind();
        assert_eq!(refused, std::io::ErrorKind::ReadOnlyFilesystem, "{served} {mounted}");
        scratch.umount();
        server.stop();
    }
}

#[test]
fn watched_shm_mount_caches_and_sees_changes() {
    let Some(scratch) = MountPlace::new() else { return };
    let server = scratch.serve_shm("--host-watch");
    server.says(&[" export=/tree host-watch\n"]);
    let mount = scratch.serve_until("mount -f shm:link.sock/tree mnt", "ready fuse");
    mount.says(&[" coherence=push\n"]);
    let (ours, theirs) = (scratch.mnt().join("file"), scratch.path("tree/file"));
    let sees = |text: &str| fs::read_to_string(&ours).is_ok_and(|found| found == text);
    until("the first look", || sees("content\n"));
    let looks = || scratch.served("getattr") + scratch.served("lookup");
    // The watch begins with a general invalidation, and reading updates the access time.
    until("looks cost no request", || {
        let before = looks();
        (0..1000).for_each(|_| assert!(ours.metadata().is_ok()));
        looks() == before
    });
    fs::write(&theirs, "changed").expect("written");
    until("the host's change is seen", || sees("changed"));
    server.stop();
    fs::write(&theirs, "changed while no server was there").expect("written");
    let server = scratch.serve_shm("--host-watch");
    until("what changed meanwhile is seen", || sees("changed while no server was there"));
    fs::write(&theirs, "changed again").expect("written");
    until("the host's change is seen again", || sees("changed again"));
    mount.stop();
    server.stop();
}

#[test]
fn failed_mounts_are_reported_in_one_line() {
    let scratch = Scratch::new();
    let server = scratch.serve_shm("");
    scratch.all_fail(&[
        ("mount shm:none.sock/tree mnt", 1, &["none.sock", "no such socket", "tombolo serve DIR --shm"]),
        ("mount shm:plain/tree mnt", 1, &["plain is not a socket"]),
        ("mount shm:link.sock/none mnt", 1, &["mount shm:", "no such export"]),
        ("mount shm:link.sock mnt", 2, &["the name is missing", "shm:SOCKET/NAME"]),
        ("mount shm:link.sock/tree mnt -o rsize=4096", 2, &["rsize=4096 is for NFS servers"]),
        ("mount shm:link.sock/tree mnt -o submounts=hide", 2, &["submounts"]),
        ("mount dir:tree mnt -o doorbell=poll", 2, &["doorbell", "shm:SOCKET/NAME"]),
        ("mount shm:link.sock/tree mnt -o doorbell=gong", 2, &["poll, event, adaptive"]),
    ]);
    server.stop();
    // Leftover socket of a dead server, and a socket of another protocol.
    drop(std::os::unix::net::UnixListener::bind(scratch.path("dead")).expect("a socket"));
    scratch
        .run("mount shm:dead/tree mnt")
        .failed(1, &["dead", "no server is listening", "tombolo serve DIR --shm"]);
    let other = scratch.serve("serve tree --virtiofs vm.sock");
    scratch.run("mount shm:vm.sock/tree mnt").failed(1, &["vm.sock", "not a link socket"]);
    other.stop();
}

#[test]
fn shm_mount_survives_server_restart() {
    let Some(scratch) = MountPlace::new() else { return };
    let mut server = scratch.serve_shm("");
    scratch.run("mount shm:link.sock/tree mnt").succeeded();
    let mounted_by = scratch.server_pid();
    let file = scratch.mnt().join("file");
    // Held by another process: descriptors passed to the server would have to be closed there first, which
    // waits for the server.
    let path = file.display();
    let script = format!("exec 3>>{path}; while read line; do echo $line >&3; echo; done");
    let mut holder = std::process::Command::new("sh");
    let mut holder =
        holder.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("sh");
    let mut lines = holder.stdin.take().expect("a pipe");
    let mut done = BufReader::new(holder.stdout.take().expect("a pipe")).lines();
    let mut hold = |line: &str| {
        writeln!(lines, "{line}").expect("it reads");
        done.next().expect("it answers").expect("it answers");
    };
    hold("first");
    let mut text = String::from("content\nfirst\n");
    for name in ["KILL", "TERM"] {
        server.signal(name);
        server.wait();
        // Requests wait meanwhile, and open files stay open.
        let asked = std::thread::spawn({
            let path = scratch.mnt().join(name);
            move || fs::write(path, name)
        });
        server = scratch.serve_shm("");
        asked.join().expect("no panic").expect("written");
        assert_eq!(fs::read_to_string(scratch.path("tree").join(name)).expect("read"), name);
        hold(name);
        text += &format!("{name}\n");
        assert_eq!(fs::read_to_string(scratch.path("tree/file")).expect("read"), text);
        assert_eq!(fs::read_to_string(&file).expect("read"), text);
    }
    assert_eq!(scratch.server_pid(), mounted_by, "the mount's own server needs no successor");
    contains(&scratch.log(), &["link to the server lost", "reconnected to the server"]);
    drop(lines);
    holder.wait().expect("it ends");
    // Unmounting does not wait for an absent server.
    server.kill();
    scratch.umount();
    assert!(!is_mounted(&scratch.mnt()));
    until("the supervisor has ended", || !scratch.is_served());
    scratch.serve_shm("").stop();
    assert!(!is_mounted(&scratch.mnt()));
}

#[test]
fn a_soft_mount_waits_so_long_for_its_server() {
    let Some(scratch) = MountPlace::new() else { return };
    let server = scratch.serve_shm("");
    scratch.run("mount shm:link.sock/tree mnt -o soft,timeo=5").succeeded();
    let file = scratch.mnt().join("file");
    server.kill();
    let failed = fs::read_to_string(&file).expect_err("no server is there");
    assert_eq!(failed.kind(), std::io::ErrorKind::TimedOut, "{failed}");
    let server = scratch.serve_shm("");
    until("the mount goes on", || fs::read_to_string(&file).is_ok_and(|text| text == "content\n"));
    scratch.umount();
    server.stop();
}

#[test]
fn a_policy_file_grants_exports_to_users() {
    let scratch = Scratch::new();
    let rules = |text: &str| fs::write(scratch.path("links.toml"), text).expect("write");
    rules("[[allow]]\nexports = ['/tree']\neverybody = true\n");
    let words = "serve tree mnt=/other --shm link.sock --shm-policy links.toml";
    let server = scratch.serve(words);
    assert_eq!(scratch.path("link.sock").metadata().expect("a socket").permissions().mode() & 0o777, 0o666);
    assert_eq!(scratch.run("cat shm:link.sock/tree/file").out, "content\n");
    scratch.run("ls shm:link.sock/other").failed(1, &["not allowed", "--shm-policy"]);
    server.stop();
    rules("[[allow]]\nusers = ['root']\n");
    scratch.run(words).failed(1, &["links.toml"]);
    scratch.run("serve tree --virtiofs s --shm-policy links.toml").failed(2, &["--shm SOCKET"]);
    scratch.run("serve tree --shm s --doorbell gong").failed(2, &["poll, event, adaptive"]);
    scratch.run("serve tree --shm s --shm s").failed(2, &["given twice"]);
    scratch.run("serve tree --shm s,export=/x").failed(2, &["no export /x", "available: /tree"]);
}

#[test]
fn shm_file_is_served_and_mounted() {
    let Some(scratch) = MountPlace::new() else { return };
    let serve = "serve tree --shm-file region,size=16M";
    let words = format!("{serve} --control serve.sock");
    let server = scratch.serve(&words);
    let region = scratch.text("region");
    server.says(&[
        format!("ready shm-file {region} export=/tree\n"),
        format!("mem-path={region},size=16777216 -device ivshmem-plain,memdev=shm0\n"),
        "guest:      tombolo mount shm+pci:/tree /mnt\n".to_owned(),
        format!("iomem=mmapper,{region}\n"),
        "guest:      tombolo mount shm+mmapper:/tree /mnt\n".to_owned(),
        format!("tombolo mount shm+file:{region}/tree /mnt\n"),
    ]);
    assert_eq!(scratch.path("region").metadata().expect("made").len(), 16 << 20);
    scratch.run(serve).failed(1, &["region", "in use by another server"]);
    let listed = scratch.run("ls shm+file:region/tree");
    assert_eq!((listed.code, listed.out.as_str()), (Some(0), "file\n"), "{listed:?}");
    scratch.run("mount shm+file:region/other mnt").failed(1, &["no such export"]);
    scratch.run("mount shm+file:region/tree mnt").succeeded();
    let large = numbers();
    fs::write(scratch.mnt().join("new"), large).expect("write");
    assert!(fs::read_to_string(scratch.path("tree/new")).expect("read") == large);
    assert!(fs::read_to_string(scratch.mnt().join("new")).expect("read") == large);
    server.kill();
    let file = scratch.mnt().join("file");
    let server = scratch.serve(&words);
    assert_eq!(fs::read_to_string(&file).expect("it waits for the server"), "content\n");
    scratch.umount();
    server.stop();
}

#[test]
fn invalid_shm_file_is_reported_in_one_line() {
    let scratch = Scratch::new();
    scratch.all_fail(&[
        ("serve tree --shm-file none", 1, &["none", "no such file", ",size=SIZE"]),
        ("serve tree --shm-file tree,size=1M", 1, &["serve over tree"]),
        ("serve tree --shm-file /dev/null/x", 1, &["/dev/null/x: Not a directory"]),
        ("serve tree --shm-file x,size=1", 2, &["size=1", "such as 64M"]),
        ("serve tree --shm-file mmapper:", 2, &["add ,size=SIZE"]),
        ("mount shm+file:none/tree mnt", 1, &["no such file", "none", "--shm-file FILE,size=SIZE"]),
        ("mount shm+pci:ff:1f.7/tree mnt", 1, &["shm+pci:ff:1f.7/tree", "no PCI device ff:1f.7"]),
        ("mount shm+mmapper:/tree mnt", 1, &["/dev/mmapper"]),
        ("mount shm+mmapper:tree mnt", 2, &["write shm+mmapper:/NAME"]),
    ]);
}

/// Returns the entry of the only server in `tombolo links --json`.
fn links(scratch: &Scratch) -> serde_json::Value {
    let mut value = scratch.run("links --json").succeeded().json();
    assert_eq!(value["servers"].as_array().map(Vec::len), Some(1), "{value}");
    value["servers"][0].take()
}

fn guest_count(scratch: &Scratch) -> usize {
    links(scratch)["guests"].as_array().expect("guests").len()
}

#[test]
fn links_lists_clients_while_they_are_linked() {
    let Some(scratch) = MountPlace::new() else { return };
    let none = scratch.run("links").succeeded();
    assert!(none.out.contains("no server of this user offers links"), "{none:?}");
    let words = "serve tree mnt=/other --shm link.sock,export=/tree --shm-file region,size=16M";
    let server = scratch.serve(words);
    let (link, region) = (scratch.text("link.sock"), scratch.text("region"));
    let offered = links(&scratch.0);
    assert_eq!(offered["pid"], server.pid());
    assert_eq!(offered["exports"], serde_json::json!(["/other", "/tree"]));
    let places =
        [format!("shm:{link}/tree"), format!("shm+file:{region}/tree"), format!("shm+file:{region}/other")];
    assert_eq!(offered["places"], serde_json::json!(places));
    let alone = scratch.run("links");
    assert!(alone.out.starts_with("tree  pid ") && alone.out.ends_with("\nno clients\n"), "{alone:?}");

    for (from, label) in [("shm:link.sock/tree", "tombolo:"), ("shm+file:region/tree", region.as_str())] {
        scratch.run(format!("mount {from} mnt")).succeeded();
        until("the mount is listed", || guest_count(&scratch.0) == 1);
        let guest = links(&scratch.0)["guests"][0].take();
        assert!(guest["label"].as_str().is_some_and(|shown| shown.starts_with(label)), "{guest}");
        assert_eq!((&guest["export"], &guest["health"]), (&"/tree".into(), &"well".into()), "{guest}");
        let before = guest["answers"].as_u64().expect("a number");
        until("its requests are counted", || {
            fs::write(scratch.mnt().join("new"), "x").expect("write");
            fs::remove_file(scratch.mnt().join("new")).expect("remove");
            links(&scratch.0)["guests"][0]["answers"].as_u64().is_some_and(|now| now > before)
        });
        let shown = scratch.run("links");
        let row = shown.out.lines().last().unwrap_or_default();
        assert!(row.starts_with(label) && row.contains("  /tree  ") && row.contains("  well  "), "{shown:?}");
        scratch.umount();
        until("it is not listed any more", || guest_count(&scratch.0) == 0);
    }

    // The next listing removes the entry of a killed server.
    server.kill();
    let left = || fs::read_dir(scratch.path("run/tombolo/links")).expect("the list").count();
    assert_ne!(left(), 0);
    assert_eq!(scratch.run("links --json").out, "{\"servers\":[]}\n");
    assert_eq!(left(), 0);
    let server = scratch.serve(words);
    assert_ne!(left(), 0);
    server.stop();
    assert_eq!(left(), 0);
}

#[test]
fn links_shows_late_guest_and_survives_bad_registry() {
    let Some(scratch) = MountPlace::new() else { return };
    let server = scratch.serve_shm("");
    let mount = scratch.serve_until("mount -f shm:link.sock/tree mnt", "ready fuse");
    until("the mount is listed", || guest_count(&scratch.0) == 1);
    mount.signal("STOP");
    until("its silence shows", || links(&scratch.0)["guests"][0]["health"] == "late");
    let shown = scratch.run("links");
    assert!(shown.out.contains("  late by ") && shown.out.contains(" s  "), "{shown:?}");
    mount.signal("CONT");
    until("it is well again", || links(&scratch.0)["guests"][0]["health"] == "well");
    mount.stop();
    server.stop();

    let list = scratch.path("run/tombolo/links");
    fs::set_permissions(&list, fs::Permissions::from_mode(0o777)).expect("chmod");
    let server = scratch.serve_shm("");
    assert_eq!(scratch.run("cat shm:link.sock/tree/file").out, "content\n");
    scratch.run("links").failed(1, &["run/tombolo/links", "no other user can write to"]);
    server.stop();
}

/// Exports of another server are served on; the end of either is reported to the program at the far end.
#[test]
fn shm_export_is_served_on_by_another_server() {
    let scratch = Scratch::new();
    let last = scratch.serve_shm("");
    let middle = || scratch.serve("serve shm:link.sock/tree=/mid --shm mid.sock --control mid-control.sock");
    let server = middle();
    server.says(&[format!("ready shm {} export=/mid", scratch.text("mid.sock"))]);
    scratch.is_copied("shm:mid.sock/mid/copy", "copy", "shm:mid.sock/mid/copy");
    server.stop();
    let server = scratch.serve("serve shm:link.sock/tree=/mid --shm mid.sock --read-only --control c");
    scratch.run("rm shm:mid.sock/mid/copy").failed(1, &["ead-only"]);
    server.stop();
    let server = middle();
    last.kill();
    scratch.run("cp -q large shm:mid.sock/mid/again").failed(1, &["mid.sock"]);
    server.stop();
    scratch.run("serve shm:none.sock/tree --shm mid.sock --control c").failed(1, &["shm:", "none.sock"]);
    scratch.run("serve shm:link.sock --shm mid.sock").failed(2, &["write shm:SOCKET/NAME"]);
}
