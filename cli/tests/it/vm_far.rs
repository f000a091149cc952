//! Clones of images on NFS servers, which all VMs of a host read through one cache.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use crate::common::{Server, signal, until};
use crate::vm::{Bed, Flaw, MIB, at};

/// An image at `tree/image`, and the URL of it on an NFS server.
fn far_image(bed: &Bed) -> (Server, String) {
    bed.make_image();
    fs::rename(bed.0.path("image"), bed.0.path("tree/image")).expect("move");
    let (server, url) = bed.0.serve_nfs();
    (server, format!("{url}/image"))
}

fn clone(bed: &Bed, image: &str, name: &str, more: &[&str]) {
    let _told = bed.vmm(name, Flaw::None);
    let words = ["clone", image, name, "--net", "none", "--qemu", "./vmm"];
    bed.0.run(&[&words, more].concat()).succeeded();
}

/// The only cache that runs.
fn cache(bed: &Bed) -> u32 {
    match *bed.caches() {
        [pid] => pid,
        ref others => panic!("these caches run: {others:?}"),
    }
}

#[test]
fn a_clone_of_an_image_on_another_host_reads_there_what_it_touches() {
    let bed = Bed::new();
    let (server, image) = far_image(&bed);
    // As where nothing of ours has run yet.
    fs::remove_dir_all(bed.0.path("run/tombolo")).expect("remove");
    clone(&bed, &image, "one", &[]);
    let memory = bed.memory_of_clone("one");
    assert_eq!(at(&memory, MIB, 6), "memory");
    File::options().write(true).open(&memory).expect("open").write_all_at(b"change", MIB).expect("write");
    bed.0.run(&["vm", "suspend", "one", "--to", "second"]).succeeded();
    let found = ["second", "tree/image"].map(|dir| at(&bed.0.path(dir).join("memory"), MIB, 6));
    assert_eq!(found, ["change", "memory"]);
    assert_eq!(at(&bed.0.path("second/disk"), MIB, 4), "disk");
    server.stop();
    bed.0.run(&["vm", "rm", "one"]).succeeded();
}

#[test]
fn the_clones_of_a_host_share_a_cache_and_go_on_when_it_was_killed() {
    let bed = Bed::new();
    let (_server, image) = far_image(&bed);
    clone(&bed, &image, "one", &[]);
    let first = cache(&bed);
    clone(&bed, &image, "two", &[]);
    assert_eq!(cache(&bed), first);
    assert_eq!(at(&bed.memory_of_clone("one"), MIB, 6), "memory");
    signal(first, "KILL");
    // What neither has read yet.
    assert_eq!(at(&bed.memory_of_clone("two"), MIB + 4096, 4), "\0\0\0\0");
    until("it is started again, once", || bed.caches().len() == 1 && cache(&bed) != first);
    for name in ["one", "two"] {
        assert!(bed.is(name, "running"), "{}", bed.list());
        assert_eq!(at(&bed.memory_of_clone(name), MIB, 6), "memory");
    }
}

#[test]
fn an_image_that_was_replaced_is_noticed_behind_the_cache() {
    let bed = Bed::new();
    let (_server, image) = far_image(&bed);
    clone(&bed, &image, "one", &[]);
    assert_eq!(at(&bed.memory_of_clone("one"), MIB, 6), "memory");
    bed.0.run(&["vm", "suspend", "one"]).succeeded();
    let memory = bed.0.path("tree/image/memory");
    let replaced = bed.0.path("tree/image/new");
    fs::copy(&memory, &replaced).expect("copy");
    File::options()
        .write(true)
        .open(&replaced)
        .and_then(|file| file.write_all_at(b"second", MIB))
        .expect("write");
    fs::rename(&replaced, &memory).expect("replace");
    let _told = bed.vmm("one", Flaw::None);
    bed.0.run(&["vm", "resume", "one"]).failed(1, &["bring", "back as it was"]);
    clone(&bed, &image, "two", &[]);
    assert_eq!(at(&bed.memory_of_clone("two"), MIB, 6), "second");
}

#[test]
fn a_cache_lies_where_it_was_asked_for_or_there_is_none() {
    let bed = Bed::new();
    let (_server, image) = far_image(&bed);
    clone(&bed, &image, "bare", &["--no-cache"]);
    assert_eq!((at(&bed.memory_of_clone("bare"), MIB, 6), bed.caches().len()), ("memory".into(), 0));
    clone(&bed, &image, "one", &["--cache", "caches", "--cache-size", "64M"]);
    let first = cache(&bed);
    assert!(fs::read_dir(bed.0.path("caches")).expect("made").count() > 0);
    bed.0.run(&["vm", "suspend", "one"]).succeeded();
    let _told = bed.vmm("one", Flaw::None);
    bed.0.run(&["vm", "resume", "one"]).succeeded();
    assert_eq!(cache(&bed), first);
    bed.0.run(&["clone", &image, "x", "--no-cache", "--cache", "c"]).failed(2, &["--no-cache"]);
    bed.0.run(&["clone", &image, "x", "--cache-size", "much"]).failed(2, &["8G"]);
}

#[test]
fn a_proxy_that_no_process_uses_ends() {
    let bed = Bed::new();
    let (_server, url) = bed.0.serve_nfs();
    let words = ["proxy", &url, "--cache", "cache", "--shm", "proxy.link", "--end-when-unused", "1"];
    let mut proxy = bed.0.serve(&words, "ready control");
    assert_eq!(bed.0.run(&["cat", &format!("shm:{}/tree/file", bed.0.text("proxy.link"))]).out, "content\n");
    assert_eq!(proxy.wait().code(), Some(0));
    let more = ["proxy", &url, "--cache", "cache", "--nfs", "127.0.0.1:0", "--end-when-unused", "1"];
    bed.0.run(&more).failed(2, &["--shm"]);
}
