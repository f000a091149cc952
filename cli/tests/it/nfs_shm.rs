//! NFS over shared memory, from the view of users. Mounting needs /dev/fuse and the right to mount; serving
//! needs root, for file handles.

use std::fs;

use crate::common::{MountPlace, Scratch, until};

#[test]
fn file_commands_work_over_nfs_on_shared_memory() {
    let scratch = Scratch::new();
    let server = scratch.serve_shm("--squash none");
    let url = "nfs+shm:link.sock/tree/dir";
    scratch.is_copied(url, "dir", &format!("{url}?rsize=4096&soft"));
    assert_eq!(scratch.run("ls nfs+shm:link.sock/tree").succeeded().out, "dir\nfile\n");
    assert_eq!(scratch.run("cat nfs+shm:link.sock/tree/file").out, "content\n");
    scratch.run("stat nfs+shm:link.sock/tree/file").succeeded();
    scratch.run("rm nfs+shm:link.sock/tree/dir").succeeded();
    assert!(!scratch.path("tree/dir").exists());
    server.stop();
}

#[test]
fn a_mount_waits_for_its_server_and_goes_on() {
    let Some(scratch) = MountPlace::new() else { return };
    let mut server = scratch.serve_shm("--squash none");
    scratch.run("mount nfs+shm:link.sock/tree mnt -o noac").succeeded();
    assert_eq!(fs::read_to_string(scratch.mnt().join("file")).expect("read"), "content\n");
    let first = scratch.server_pid();
    for name in ["KILL", "TERM"] {
        server.signal(name);
        server.wait();
        let file = scratch.mnt().join(name);
        // The write waits and is executed by the next server.
        let writing = std::thread::spawn(move || fs::write(file, "x"));
        server = scratch.serve_shm("--squash none");
        writing.join().expect("no panic").expect("written in the end");
        assert_eq!(fs::read_to_string(scratch.path("tree").join(name)).expect("read"), "x");
    }
    assert_eq!(scratch.server_pid(), first, "the same process all the time");
    scratch.umount();
    until("the supervisor has ended", || !scratch.is_served());
    server.stop();
}

#[test]
fn nfs_shm_mounts_subdirectory_over_memory_file() {
    let Some(scratch) = MountPlace::new() else { return };
    fs::create_dir_all(scratch.path("tree/a/b")).expect("made");
    fs::write(scratch.path("tree/a/b/deep"), "deep\n").expect("made");
    let server = scratch.serve_shm("--shm-file region,size=16M");
    for source in ["nfs+shm:link.sock/tree/a/b", "nfs+shm+file:region/tree/a/b"] {
        scratch.run(format!("mount {source} mnt -o ro")).succeeded();
        assert_eq!(fs::read_to_string(scratch.mnt().join("deep")).expect("read"), "deep\n", "{source}");
        scratch.umount();
    }
    server.stop();
}

#[test]
fn failures_over_shared_memory_are_reported_in_one_line() {
    let scratch = Scratch::new();
    let server = scratch.serve_shm("");
    scratch.all_fail(&[
        // Root is squashed unless an option says otherwise.
        ("cp -q plain nfs+shm:link.sock/tree/new", 1, &["/tree/new"]),
        ("mount nfs+shm:none.sock/tree mnt", 1, &["none.sock", "no such socket", "tombolo serve DIR --shm"]),
        ("mount nfs+shm:plain/tree mnt", 1, &["plain is not a socket"]),
        ("mount nfs+shm:link.sock/none mnt", 1, &["mount nfs+shm:", "no such export"]),
        ("mount nfs+shm:link.sock/tree/none mnt", 1, &["mount nfs+shm:", "no such export"]),
        ("mount nfs+shm:link.sock mnt", 2, &["the name is missing", "nfs+shm:SOCKET/NAME"]),
        ("mount nfs+shm:link.sock/tree mnt -o proto=udp", 2, &["option proto=udp does not apply"]),
        ("mount nfs+shm:link.sock/tree?port=7 mnt", 2, &["option port=7 does not apply"]),
        ("mount nfs+shm:link.sock/tree mnt -o submounts=hide", 2, &["submounts"]),
    ]);
    server.stop();
}
