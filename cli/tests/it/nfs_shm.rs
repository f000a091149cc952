//! NFS over memory in common, as users see it. Mounting needs /dev/fuse and the right to mount; serving needs root, for handles.

use std::fs;

use crate::common::{MountPlace, Place, Server, until};

fn serve(place: &Place, more: &[&str]) -> Server {
    let words = [&["serve", "tree", "--shm", "link.sock", "--control", "serve.sock"], more].concat();
    place.serve(&words, "ready control")
}

fn stop(mut server: Server) {
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn files_are_listed_read_and_copied_at_the_socket_that_speaks_the_other_protocol_too() {
    let place = Place::new();
    let large: String = (0..400_000).map(|number| format!("{number} ")).collect();
    fs::write(place.path("large"), &large).expect("write");
    let server = serve(&place, &["--squash", "none"]);
    place.run(&["cp", "-q", "large", "nfs+shm:link.sock/tree/dir"]).succeeded();
    assert!(fs::read_to_string(place.path("tree/dir")).expect("read") == large);
    for scheme in ["nfs+shm", "shm"] {
        let listed = place.run(&["ls", &format!("{scheme}:link.sock/tree")]);
        assert_eq!((listed.code, listed.out.as_str()), (Some(0), "dir\nfile\n"), "{listed:?}");
        assert_eq!(place.run(&["cat", &format!("{scheme}:link.sock/tree/file")]).out, "content\n");
    }
    place.run(&["stat", "nfs+shm:link.sock/tree/file"]).succeeded();
    place.run(&["cp", "-q", "nfs+shm:link.sock/tree/dir?rsize=4096&soft", "back"]).succeeded();
    assert!(fs::read_to_string(place.path("back")).expect("read") == large);
    place.run(&["rm", "nfs+shm:link.sock/tree/dir"]).succeeded();
    assert!(!place.path("tree/dir").exists());
    stop(server);
}

#[test]
fn root_is_squashed_unless_somebody_says_otherwise() {
    let place = Place::new();
    let server = serve(&place, &[]);
    let refused = place.run(&["cp", "-q", "plain", "nfs+shm:link.sock/tree/new"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(!place.path("tree/new").exists());
    stop(server);
}

#[test]
fn a_mount_waits_for_its_server_and_goes_on() {
    let Some(place) = MountPlace::new() else { return };
    let mut server = serve(&place.0, &["--squash", "none"]);
    place.0.run(&["mount", "nfs+shm:link.sock/tree", "mnt", "-o", "noac"]).succeeded();
    assert_eq!(fs::read_to_string(place.mnt().join("file")).expect("read"), "content\n");
    let first = place.server_pid();
    for name in ["KILL", "TERM"] {
        server.signal(name);
        server.wait();
        let file = place.mnt().join(name);
        // It waits for the server, and the one that comes then performs it.
        let writing = std::thread::spawn(move || fs::write(file, "x"));
        server = serve(&place.0, &["--squash", "none"]);
        writing.join().expect("no panic").expect("written in the end");
        assert_eq!(fs::read_to_string(place.0.path("tree").join(name)).expect("read"), "x");
    }
    assert_eq!(place.server_pid(), first, "the same process all the time");
    place.umount();
    until("the keeper has ended", || !place.is_served());
    stop(server);
}

#[test]
fn a_directory_within_an_export_can_be_mounted_and_a_file_be_the_memory() {
    let Some(place) = MountPlace::new() else { return };
    fs::create_dir_all(place.0.path("tree/a/b")).expect("made");
    fs::write(place.0.path("tree/a/b/deep"), "deep\n").expect("made");
    let server = serve(&place.0, &["--shm-file", "region,size=16M"]);
    for source in ["nfs+shm:link.sock/tree/a/b", "nfs+shm+file:region/tree/a/b"] {
        place.0.run(&["mount", source, "mnt", "-o", "ro"]).succeeded();
        assert_eq!(fs::read_to_string(place.mnt().join("deep")).expect("read"), "deep\n", "{source}");
        place.umount();
    }
    stop(server);
}

#[test]
fn what_cannot_be_mounted_is_said_in_one_line() {
    let place = Place::new();
    let server = serve(&place, &[]);
    for (words, code, said) in [
        (&["nfs+shm:none.sock/tree"][..], 1, &["none.sock", "no socket", "tombolo serve DIR --shm"][..]),
        (&["nfs+shm:plain/tree"], 1, &["plain is not a socket"]),
        (&["nfs+shm:link.sock/none"], 1, &["mount nfs+shm:", "no such export"]),
        (&["nfs+shm:link.sock/tree/none"], 1, &["mount nfs+shm:", "no such export"]),
        (&["nfs+shm:link.sock"], 2, &["a name is missing", "nfs+shm:SOCKET/NAME"]),
        (&["nfs+shm:link.sock/tree", "-o", "proto=udp"], 2, &["option proto=udp is for networks"]),
        (&["nfs+shm:link.sock/tree?port=7"], 2, &["option port=7 is for networks"]),
        (&["nfs+shm:link.sock/tree", "-o", "submounts=hide"], 2, &["submounts"]),
    ] {
        let words = [&["mount"], words, &["mnt"]].concat();
        eprintln!("tombolo {words:?}");
        place.run(&words).failed(code, said);
    }
    stop(server);
}
