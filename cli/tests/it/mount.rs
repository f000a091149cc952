//! `tombolo mount` and `tombolo umount`, from the view of users and mount(8). Needs /dev/fuse and the right
//! to mount.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;

use crate::common::{MountPlace, Ran, http, is_mounted, signal, until};

#[test]
fn mount_and_umount_return_when_complete() {
    let Some(scratch) = MountPlace::new() else { return };
    let before = scratch.listing();
    scratch.mount("allow_other");
    assert_eq!(fs::read(scratch.mnt().join("file")).expect("read"), b"content\n");
    fs::write(scratch.mnt().join("new"), "by the mount").expect("write");
    assert_eq!(fs::read(scratch.path("tree/new")).expect("read"), b"by the mount");
    scratch.run("top --once").says(&["write", "fuse"]);
    fs::remove_file(scratch.mnt().join("new")).expect("remove");
    scratch.umount();
    assert!(!is_mounted(&scratch.mnt()));
    assert_eq!(scratch.listing(), before);
    until("the supervisor has ended", || !scratch.is_served());
    let state = || fs::read_dir(scratch.path("state/tombolo")).expect("list").flatten();
    until("nothing of it is left", || state().all(|entry| entry.file_name() == "version"));
}

#[test]
fn a_mount_can_follow_another_at_once() {
    let Some(scratch) = MountPlace::new() else { return };
    for _ in 0..20 {
        scratch.mount("ro");
        fs::read(scratch.mnt().join("file")).expect("read");
        scratch.umount();
    }
    until("the last supervisor has ended", || !scratch.is_served());
}

#[test]
fn options_count() {
    let Some(scratch) = MountPlace::new() else { return };
    scratch.mount("ro,noexec,fsname=a name,noatime,x-systemd.automount");
    let table = fs::read_to_string("/proc/self/mounts").expect("proc");
    let point = scratch.mnt();
    let line = table.lines().find(|line| line.contains(point.to_str().expect("UTF-8"))).expect("the mount");
    assert!(
        line.starts_with("a\\040name ") && line.contains(" fuse.tombolo ro,nosuid,nodev,noexec"),
        "{line}"
    );
    let refused = fs::write(scratch.mnt().join("file"), "").expect_err("read-only");
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert_eq!(scratch.status()["exports"][0]["read_only"], true);
    scratch.umount();
}

#[test]
fn busy_mount_point_is_refused_and_unchanged() {
    let Some(scratch) = MountPlace::new() else { return };
    scratch.mount("ro");
    scratch.run("mount dir:tree mnt").failed(1, &["busy", "fuse.tombolo", "tombolo umount"]);
    let open = fs::File::open(scratch.mnt().join("file")).expect("open");
    scratch.run("umount mnt").failed(1, &["busy", "--lazy"]);
    assert!(is_mounted(&scratch.mnt()));
    scratch.run("umount --lazy mnt").succeeded();
    assert!(!is_mounted(&scratch.mnt()));
    assert!(scratch.is_served(), "its last user is still there");
    drop(open);
    until("the server has ended", || !scratch.is_served());
}

#[test]
fn background_mount_reports_server_error() {
    let Some(scratch) = MountPlace::new() else { return };
    let before = scratch.listing();
    scratch.run("mount dir:tree mnt --control nodir/c").failed(1, &["nodir/c", "No such file"]);
    assert_eq!(scratch.listing(), before);
    assert!(!is_mounted(&scratch.mnt()) && !scratch.is_served());
}

#[test]
fn a_killed_server_comes_back() {
    let Some(scratch) = MountPlace::new() else { return };
    scratch.mount("allow_other");
    let killed = scratch.server_pid();
    signal(killed, "KILL");
    until("the file is there again", || fs::read(scratch.mnt().join("file")).is_ok());
    assert_ne!(scratch.server_pid(), killed);
    scratch.umount();
    until("all have ended", || !scratch.is_served());
}

#[test]
fn restarted_server_keeps_control_socket_and_version() {
    let Some(scratch) = MountPlace::new() else { return };
    let program = scratch.copy_of_program();
    Ran::new(scratch.program(&program, &["mount", "dir:tree", "mnt", "--control", "c.sock"])).succeeded();
    // In-place upgrade to a different file.
    fs::remove_file(&program).expect("remove");
    symlink("/bin/false", &program).expect("link");
    let pid = || {
        let told = scratch.run("top --once --json c.sock");
        serde_json::from_str::<serde_json::Value>(&told.out).ok()?["servers"][0]["status"]["pid"].as_u64()
    };
    let killed = pid().expect("a server");
    signal(u32::try_from(killed).expect("a process"), "KILL");
    until("another server answers", || pid().is_some_and(|now| now != killed));
    until("the file is there again", || fs::read(scratch.mnt().join("file")).is_ok());
    scratch.umount();
    until("all have ended", || !scratch.is_served());
}

#[test]
fn dead_unsupervised_mount_can_be_replaced_or_unmounted() {
    let Some(scratch) = MountPlace::new() else { return };
    let kill_a_server = || {
        let server = scratch.serve_until("mount -f dir:tree mnt", "ready fuse");
        server.kill();
        let dead = fs::metadata(scratch.mnt()).expect_err("a dead mount");
        assert_eq!(dead.kind(), std::io::ErrorKind::NotConnected);
    };
    kill_a_server();
    let replaced = scratch.run("mount dir:tree mnt");
    assert!(replaced.code == Some(0) && replaced.err.contains("removing a dead mount"), "{replaced:?}");
    fs::read(scratch.mnt().join("file")).expect("alive");
    scratch.umount();
    kill_a_server();
    scratch.umount();
    assert!(!is_mounted(&scratch.mnt()) && !scratch.mnt().join("file").exists());
}

#[test]
fn a_signal_unmounts() {
    let Some(scratch) = MountPlace::new() else { return };
    let server = scratch.serve_until("mount --foreground dir:tree mnt", "ready fuse");
    assert!(is_mounted(&scratch.mnt()));
    server.stop();
    assert!(!is_mounted(&scratch.mnt()));

    scratch.mount("ro");
    signal(scratch.server_pid(), "TERM");
    until("it is unmounted and all have ended", || !is_mounted(&scratch.mnt()) && !scratch.is_served());
}

#[test]
fn mount_8_mounts_through_the_helper() {
    let Some(scratch) = MountPlace::new() else { return };
    // As called by mount(8).
    let words = "dir:tree mnt -o rw,nosuid,_netdev,coherence=strict";
    scratch.run_mount_helper(words).succeeded();
    assert_eq!(fs::read(scratch.mnt().join("file")).expect("read"), b"content\n");
    scratch.run_mount_helper(words).failed(32, &["busy"]);
    scratch.umount();
}

#[test]
fn remount_options_survive_server_restart() {
    let Some(scratch) = MountPlace::new() else { return };
    scratch.mount("allow_other");
    let flags = || {
        let table = fs::read_to_string("/proc/self/mountinfo").expect("proc");
        let point = scratch.text("mnt");
        let line = table.lines().find(|line| line.split(' ').nth(4) == Some(&point)).expect("the mount");
        line.split(' ').nth(5).expect("flags").to_owned()
    };
    let refused = || fs::write(scratch.mnt().join("new"), "").expect_err("read-only").kind();
    scratch.run("mount -o remount,ro,noexec dir:tree mnt").succeeded();
    assert_eq!(refused(), std::io::ErrorKind::ReadOnlyFilesystem);
    signal(scratch.server_pid(), "KILL");
    until("the file is there again", || fs::read(scratch.mnt().join("file")).is_ok());
    assert!(flags().contains("ro,nosuid,nodev,noexec"), "{}", flags());
    assert_eq!(refused(), std::io::ErrorKind::ReadOnlyFilesystem);
    scratch.umount();

    scratch.mount("rw");
    scratch.run("mount -o remount,ro dir:tree mnt").succeeded();
    // The helper, as called by mount(8).
    scratch.run_mount_helper("dir:tree mnt -o rw,remount").succeeded();
    fs::write(scratch.mnt().join("new"), "").expect("writable again");
    scratch.umount();

    // Only the named options change.
    scratch.mount("dev,suid,noexec");
    scratch.run("mount -o remount,ro,nosuid dir:tree mnt").succeeded();
    assert!(flags().starts_with("ro,nosuid,noexec"), "{}", flags());
    scratch.run("mount -o remount,exec dir:tree mnt").succeeded();
    assert!(flags().starts_with("ro,nosuid") && !flags().contains("noexec"), "{}", flags());
    scratch.umount();

    scratch.mount("ro");
    scratch.run("mount -o remount,noexec dir:tree mnt").succeeded();
    assert!(flags().starts_with("ro,nosuid,nodev,noexec"), "{}", flags());
    let words = "mount -o remount,rw dir:tree mnt";
    scratch.run(words).failed(1, &["mounted read-only", "mount it again"]);
    scratch.umount();
    scratch.run(words).failed(1, &["cannot remount mnt: nothing is mounted there"]);
}

#[test]
fn read_only_shm_mount_is_remounted_writable() {
    let Some(scratch) = MountPlace::new() else { return };
    let server = scratch.serve_shm("");
    scratch.run("mount shm:link.sock/tree mnt -o ro").succeeded();
    let new = scratch.mnt().join("new");
    assert_eq!(fs::write(&new, "").expect_err("read-only").kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    scratch.run("mount -o remount,rw shm:link.sock/tree mnt").succeeded();
    fs::write(&new, "").expect("writable");
    signal(scratch.server_pid(), "KILL");
    until("the mount is served again", || fs::read(&new).is_ok());
    fs::write(&new, "").expect("writable after a restart, too");
    scratch.umount();
    server.stop();
}

#[test]
fn restarted_mount_server_serves_metrics() {
    let Some(scratch) = MountPlace::new() else { return };
    let server = scratch.serve_until("mount -f --metrics 0 dir:tree mnt", "ready fuse");
    let address = server.metrics_address().to_owned();
    fs::read(scratch.mnt().join("file")).expect("read");
    assert!(http(&address, "/metrics").contains("operation=\"read\"} "));
    server.signal("TERM");
    until("it has ended", || !is_mounted(&scratch.mnt()) && !scratch.is_served());

    scratch.run(format!("mount --metrics {address} dir:tree mnt")).succeeded();
    let killed = scratch.server_pid();
    signal(killed, "KILL");
    until("the file is there again", || fs::read(scratch.mnt().join("file")).is_ok());
    assert!(http(&address, "/metrics").contains("tombolo_uptime_seconds "));
    scratch.umount();
    until("it has ended", || std::net::TcpStream::connect(&address).is_err());
}

#[test]
fn mount_log_has_no_colours() {
    let Some(scratch) = MountPlace::new() else { return };
    // script(1) provides a terminal.
    let command = format!("{} mount -v dir:tree mnt", env!("CARGO_BIN_EXE_tombolo"));
    let made = Ran::new(scratch.program("script", &["-qec", &command, "/dev/null"]));
    assert_eq!(made.code, Some(0), "{made:?}");
    scratch.umount();
    until("all have ended", || !scratch.is_served());
    let log = scratch.log();
    assert!(log.contains("unmounted") && !log.contains('\u{1b}'), "{log}");
    assert_eq!(fs::read_to_string(scratch.path("state/tombolo/version")).expect("version"), "1\n");
}

#[test]
fn each_request_can_be_followed_in_the_log() {
    let Some(scratch) = MountPlace::new() else { return };
    scratch.run("mount -vvv dir:tree mnt").code.filter(|code| *code == 0).expect("mounted");
    fs::metadata(scratch.mnt().join("missing")).expect_err("it is not there");
    scratch.umount();
    until("all have ended", || !scratch.is_served());
    let log = scratch.log();
    let failed =
        log.lines().find(|line| line.contains("failed") && line.contains("no such file")).expect("a failure");
    let request = failed.split_whitespace().find(|word| word.starts_with("request=")).expect("its request");
    let begins = |line: &str| line.contains(&format!("{request} ")) && line.contains("Lookup");
    assert!(log.lines().any(begins), "{failed}\nbelongs to no request in\n{log}");
}

#[test]
fn newer_state_directory_is_not_changed() {
    let Some(scratch) = MountPlace::new() else { return };
    fs::create_dir(scratch.path("state/tombolo")).expect("mkdir");
    let mut version = fs::File::create(scratch.path("state/tombolo/version")).expect("create");
    version.write_all(b"99\n").expect("write");
    let ran = scratch.run("mount dir:tree mnt");
    assert!(ran.code == Some(0) && ran.err.contains("newer version"), "{ran:?}");
    assert_eq!(fs::read_dir(scratch.path("state/tombolo")).expect("list").count(), 1);
    scratch.umount();
}

#[test]
fn guest_server_mounts_on_its_host() {
    let Some(scratch) = MountPlace::new() else { return };
    let before = scratch.listing();
    let server = scratch.serve("serve tree --virtiofs vm.sock --fuse mnt,allow_other --read-only");
    server.says(&[format!("ready fuse {} export=/tree", scratch.mnt().display())]);
    assert_eq!(fs::read(scratch.mnt().join("file")).expect("read"), b"content\n");
    assert!(fs::write(scratch.mnt().join("file"), "").is_err(), "read-only");
    let ways = scratch.status()["ways"].as_array().map(Vec::len);
    assert_eq!(ways, Some(2));
    server.stop();
    assert!(!is_mounted(&scratch.mnt()));
    assert_eq!(scratch.listing(), before);
}
