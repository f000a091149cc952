//! What an NFS server exports, passed on to all front ends.

use std::fs;

use crate::common::MountPlace;

#[test]
fn an_export_of_an_nfs_server_is_served_on_all_front_ends() {
    let Some(place) = MountPlace::new() else { return };
    let scratch = &place.0;
    let (_origin, url) = scratch.serve_nfs();
    let words = ["serve", &url, "--control", "proxy.sock", "--state", "proxy-state", "--squash", "none"];
    let fronts = ["--fuse", "mnt", "--shm", "link.sock", "--virtiofs", "vm.sock", "--nfs", "0"];
    let proxy = scratch.serve(&[&words[..], &fronts[..]].concat(), "ready control");
    assert!(proxy.said.contains("export=/tree"), "{}", proxy.said);

    assert_eq!(fs::read_to_string(place.mnt().join("file")).expect("read"), "content\n");
    fs::write(place.mnt().join("new"), "through the mount\n").expect("write");
    assert_eq!(fs::read_to_string(scratch.path("tree/new")).expect("read"), "through the mount\n");
    scratch.run(&["cp", "-q", "shm:link.sock/tree/new", "by-shm"]).succeeded();
    assert_eq!(fs::read_to_string(scratch.path("by-shm")).expect("read"), "through the mount\n");
    let through = format!("nfs://{}/tree/by-nfs", proxy.nfs_address());
    scratch.run(&["cp", "-q", "by-shm", &through]).succeeded();
    assert_eq!(fs::read_to_string(scratch.path("tree/by-nfs")).expect("read"), "through the mount\n");
    proxy.stop();
}

#[test]
fn what_cannot_be_served_is_said() {
    let Some(place) = MountPlace::new() else { return };
    let (_origin, url) = place.0.serve_nfs();
    let other = format!("serve {url}/none --nfs 0");
    place.0.all_fail(&[
        (&other, 1, &["cannot serve nfs://", "/none"]),
        ("serve nfs://127.0.0.1:1/tree --nfs 0", 1, &["cannot serve nfs://127.0.0.1:1/tree", "refused"]),
        ("serve nfs://host/tree?nosuch --nfs 0", 2, &["nosuch"]),
        ("serve nfs://host/tree", 2, &["nothing to serve it on"]),
    ]);
}
