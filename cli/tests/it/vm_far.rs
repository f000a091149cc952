//! Clones of images on NFS servers, read by all VMs of a host through one cache.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::{Server, overwrite, signal, until};
use crate::vm::{Bed, Flaw, MIB, at};

/// Creates an image at `tree/image`, and returns the server and the image's URL.
fn far_image(bed: &Bed) -> (Server, String) {
    bed.make_image();
    fs::rename(bed.path("image"), bed.path("tree/image")).expect("move");
    let (server, url) = bed.serve_nfs();
    (server, format!("{url}/image"))
}

fn clone(bed: &Bed, image: &str, name: &str, more: &str) {
    bed.clone_of(image, name, more).succeeded();
}

/// Returns the only running cache.
fn cache(bed: &Bed) -> u32 {
    match *bed.caches() {
        [pid] => pid,
        ref others => panic!("these caches run: {others:?}"),
    }
}

#[test]
fn clone_of_remote_image_reads_on_demand() {
    let bed = Bed::new();
    let (server, image) = far_image(&bed);
    // As before the first use.
    fs::remove_dir_all(bed.path("run/tombolo")).expect("remove");
    clone(&bed, &image, "one", "");
    let memory = bed.memory_of_clone("one");
    assert_eq!(at(&memory, MIB, 6), "memory");
    overwrite(&memory, MIB, b"change");
    bed.run("vm suspend one --to second").succeeded();
    let found = ["second", "tree/image"].map(|dir| at(&bed.path(dir).join("memory"), MIB, 6));
    assert_eq!(found, ["change", "memory"]);
    assert_eq!(at(&bed.path("second/disk"), MIB, 4), "disk");
    server.stop();
    bed.run("vm rm one").succeeded();
}

#[test]
fn new_remote_image_is_found_after_earlier_miss() {
    let bed = Bed::new();
    let (_server, image) = far_image(&bed);
    let [made, away] = ["tree/image", "tree/away"].map(|name| bed.path(name));
    fs::rename(&made, &away).expect("move");
    clone(&bed, &image.replace("/image", "/away"), "first", "");
    // The cached listing says that it does not exist.
    bed.run(format!("clone {image} one --net none --qemu ./vmm")).failed(1, &["image"]);
    fs::rename(&away, &made).expect("move");
    clone(&bed, &image, "one", "");
    assert_eq!(at(&bed.memory_of_clone("one"), MIB, 6), "memory");
}

#[test]
fn clones_share_cache_and_survive_its_kill() {
    let bed = Bed::new();
    let (_server, image) = far_image(&bed);
    clone(&bed, &image, "one", "");
    let first = cache(&bed);
    assert_is_confined(first);
    clone(&bed, &image, "two", "");
    assert_eq!(cache(&bed), first);
    assert_eq!(at(&bed.memory_of_clone("one"), MIB, 6), "memory");
    signal(first, "KILL");
    until("it is started again, once", || bed.caches().len() == 1 && cache(&bed) != first);
    // Read by neither yet.
    assert_eq!(at(&bed.memory_of_clone("two"), MIB + 4096, 4), "\0\0\0\0");
    for name in ["one", "two"] {
        assert!(bed.is(name, "running"), "{}", bed.list());
        assert_eq!(at(&bed.memory_of_clone(name), MIB, 6), "memory");
    }
}

/// Asserts that all threads are confined and have no capability except for low ports.
fn assert_is_confined(process: u32) {
    let threads = fs::read_dir(format!("/proc/{process}/task")).expect("its threads").flatten();
    for status in threads.filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok()) {
        let value = |field| status.lines().find_map(|line| line.strip_prefix(field)).expect(field).trim();
        assert_eq!(value("Seccomp:"), "2");
        let held = u64::from_str_radix(value("CapEff:"), 16).expect("a set");
        assert_eq!(held & !(1 << 10), 0, "{held:x}");
    }
}

#[test]
fn replaced_image_is_detected_through_cache() {
    let bed = Bed::new();
    let (_server, image) = far_image(&bed);
    clone(&bed, &image, "one", "");
    assert_eq!(at(&bed.memory_of_clone("one"), MIB, 6), "memory");
    bed.run("vm suspend one").succeeded();
    let memory = bed.path("tree/image/memory");
    let replaced = bed.path("tree/image/new");
    fs::copy(&memory, &replaced).expect("copy");
    overwrite(&replaced, MIB, b"second");
    fs::rename(&replaced, &memory).expect("replace");
    let _told = bed.vmm("one", Flaw::None);
    bed.run("vm resume one").failed(1, &["restore the original base"]);
    clone(&bed, &image, "two", "");
    assert_eq!(at(&bed.memory_of_clone("two"), MIB, 6), "second");
}

#[test]
fn clone_honours_cache_and_no_cache() {
    let bed = Bed::new();
    let (_server, image) = far_image(&bed);
    clone(&bed, &image, "bare", "--no-cache");
    assert_eq!((at(&bed.memory_of_clone("bare"), MIB, 6), bed.caches().len()), ("memory".into(), 0));
    clone(&bed, &image, "one", "--cache caches --cache-size 64M");
    let first = cache(&bed);
    assert!(fs::read_dir(bed.path("caches")).expect("made").count() > 0);
    bed.run("vm suspend one").succeeded();
    bed.resume("one");
    assert_eq!(cache(&bed), first);
    bed.run(format!("clone {image} x --no-cache --cache c")).failed(2, &["--no-cache"]);
    bed.run(format!("clone {image} x --cache-size much")).failed(2, &["8G"]);
}

#[test]
fn a_proxy_that_no_process_uses_ends() {
    let bed = Bed::new();
    let (_server, url) = bed.serve_nfs();
    let mut proxy = bed.serve(format!("proxy {url} --cache cache --shm proxy.link --end-when-unused 1"));
    proxy.says(&["ready sandbox landlock=on seccomp=on"]);
    assert_eq!(bed.run(format!("cat shm:{}/tree/file", bed.text("proxy.link"))).out, "content\n");
    assert_eq!(proxy.wait().code(), Some(0));
    bed.run(format!("proxy {url} --cache cache --nfs 127.0.0.1:0 --end-when-unused 1")).failed(2, &["--shm"]);
}

#[test]
fn eight_clones_at_once_fetch_each_byte_once() {
    let bed = Bed::new();
    bed.make_image();
    let image = bed.path("image");
    let noise: Vec<u8> =
        (0..MIB / 8).flat_map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect();
    for name in ["memory", "disk"] {
        overwrite(image.join(name), MIB, &noise);
    }
    fs::rename(&image, bed.path("tree/image")).expect("move");
    let (_server, url) = bed.serve_nfs();
    let url = format!("{url}/image");
    // Recent changes are read twice, since another change could have the same time.
    thread::sleep(Duration::from_secs(3));
    let names: Vec<_> = (1..=8).map(|i| format!("vm{i}")).collect();
    let _told: Vec<_> = names.iter().map(|name| bed.vmm(name, Flaw::None)).collect();
    // A clone started with everything cached reports no network traffic.
    let has_told = AtomicBool::new(false);
    thread::scope(|scope| {
        for name in &names {
            let (bed, url, noise, has_told) = (&bed, &url, &noise, &has_told);
            scope.spawn(move || {
                let made = bed.run(format!("clone {url} {name} --net none --qemu ./vmm")).succeeded();
                made.says(&["cache of the image"]);
                if made.out.contains("network: data") {
                    has_told.store(true, Ordering::Relaxed);
                }
                let mut found = vec![0; noise.len()];
                let memory = File::open(bed.memory_of_clone(name)).expect("open");
                memory.read_exact_at(&mut found, MIB).expect("read");
                assert!(found == *noise, "{name} has another memory");
            });
        }
    });
    assert!(has_told.into_inner(), "no ledger has the line");
    cache(&bed);
    let told = bed.run("top --once --json").json();
    let servers = told["servers"].as_array().expect("servers");
    let caches = servers.iter().filter_map(|server| server["caches"].as_object()?.values().next());
    let fetched: u64 = caches.filter_map(|cache| cache["fetched_bytes"].as_u64()).sum();
    // The random contents of the memory, and no more than the image has.
    assert!((MIB..MIB * 9 / 4).contains(&fetched), "{fetched} bytes");
    let shown = bed.run("vm show vm1");
    shown.says(&["round trip"]);
}

#[test]
fn clone_waits_for_absent_server() {
    let bed = Bed::new();
    let (server, image) = far_image(&bed);
    clone(&bed, &image, "one", "");
    server.signal("STOP");
    // Also with a killed cache.
    signal(cache(&bed), "KILL");
    let memory = bed.memory_of_clone("one");
    let reader = thread::spawn(move || at(&memory, MIB, 6));
    thread::sleep(Duration::from_millis(300));
    assert!(!reader.is_finished() && bed.is("one", "running"), "{}", bed.list());
    server.signal("CONT");
    assert_eq!(reader.join().expect("it goes on"), "memory");
}

#[test]
fn stalled_read_ahead_does_not_delay_suspend() {
    let bed = Bed::new();
    let _told = bed.vmm("golden", Flaw::None);
    let line = "vm start golden --disk disk.img --memory 512M --accel tcg --net none --qemu ./vmm";
    bed.run(line).succeeded();
    bed.run("vm suspend golden --to tree/image --no-scan").succeeded();
    let (server, url) = bed.serve_nfs();
    clone(&bed, &format!("{url}/image"), "one", "--no-cache");
    bed.run("vm suspend one").succeeded();
    // More than can arrive by then.
    let all: String = (0..4096).map(|piece| format!("{} {}\n", piece * (128 << 10), 128 << 10)).collect();
    fs::write(bed.vm("one").join("trace"), all).expect("write");
    bed.resume("one");
    server.signal("STOP");
    let suspended = bed.run("vm suspend one");
    server.signal("CONT");
    suspended.succeeded();
    assert!(bed.is("one", "suspended"), "{}", bed.list());
}
