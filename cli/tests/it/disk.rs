//! `tombolo disk`, from the view of a VMM, a tool and an operator.

use std::fs;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use tombolo_vhost_driver::{Driver, DriverQueue, DriverSettings};

use crate::common::{PATIENCE, Scratch, lives, signal, until, words};

pub const DISK_BYTES: u64 = 1 << 20;

pub fn with_image() -> Scratch {
    let scratch = Scratch::new();
    scratch.sparse("vm.img", DISK_BYTES);
    scratch
}

pub fn guest(scratch: &Scratch) -> (Driver, DriverQueue) {
    const FLUSHES: u64 = 1 << 9;
    let settings = DriverSettings { device_features: FLUSHES, ..DriverSettings::default() };
    let (driver, mut queues) = Driver::connect(&scratch.path("vm.sock"), settings).expect("connect");
    (driver, queues.remove(0))
}

/// Sends a request with data. Returns the data received and the status.
pub fn ask(queue: &mut DriverQueue, kind: u32, sector: u64, data: &[u8]) -> (Vec<u8>, u8) {
    let lens = [16, data.len() as u32, 1];
    let [head, body, status] = lens.map(|len| queue.alloc(len).expect("guest memory"));
    queue.write(head, &(u128::from(kind) | u128::from(sector) << 64).to_le_bytes());
    queue.write(body, data);
    let body_part = if kind == OUT { body.readable() } else { body.writable() };
    queue.submit(&[head.readable(), body_part, status.writable()]).expect("room");
    queue.wait_used(PATIENCE).expect("an answer");
    let (mut back, mut code) = (vec![0; data.len()], [0xee]);
    queue.read(body, &mut back);
    queue.read(status, &mut code);
    (back, code[0])
}

pub const IN: u32 = 0;
pub const OUT: u32 = 1;
pub const FLUSH: u32 = 4;

#[test]
fn disk_is_served_counted_resized_and_cleaned_up() {
    let scratch = with_image();
    let before = scratch.listing();
    let server = scratch.serve("disk vm.img --vhost-user vm.sock --queues 2 --serial root");
    let socket = scratch.text("vm.sock");
    server.says(&[
        format!("ready vhost-user-blk {socket} disk=vm.img size={DISK_BYTES}\n"),
        "-object memory-backend-memfd,id=mem,size=1G,share=on -numa node,memdev=mem".to_owned(),
        format!(
            "-chardev socket,id=disk0,path={socket},reconnect=1 -device vhost-user-blk-pci,chardev=disk0,num-queues=2"
        ),
        "/dev/disk/by-id/virtio-root".to_owned(),
        format!("ready control {}\n", scratch.text("run/tombolo/vm.img.sock")),
    ]);

    let (mut driver, mut queue) = guest(&scratch);
    assert_eq!(ask(&mut queue, OUT, 7, &[5; 512]).1, 0);
    assert_eq!(ask(&mut queue, IN, 7, &[0; 512]), (vec![5; 512], 0));
    assert_eq!(fs::read(scratch.path("vm.img")).expect("read")[7 * 512..][..512], [5; 512]);
    let top = scratch.run("top --once --json").succeeded();
    top.says(&["vm.img", "\"read\"", "\"write\""]);

    let mut way_back = driver.front.open_way_back().expect("a way back");
    way_back.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    driver.config(0, 8).expect("the size");
    scratch.run("disk resize vm.img 2M").succeeded();
    way_back.read_exact(&mut [0; 12]).expect("the guest is told");
    assert_eq!(driver.config(0, 8).expect("the size"), (2u64 << 20 >> 9).to_le_bytes());
    assert_eq!(fs::metadata(scratch.path("vm.img")).expect("stat").len(), 2 << 20);
    assert_eq!(ask(&mut queue, IN, 4095, &[1; 512]), (vec![0; 512], 0));
    scratch.run("disk resize vm.img 1000 --shrink").failed(1, &["cannot resize vm.img", "invalid argument"]);
    scratch.run("disk resize plain 2M").failed(1, &["no server"]);

    server.stop();
    assert_eq!(scratch.listing(), before);
}

#[test]
fn a_disk_becomes_smaller_only_when_that_is_said() {
    let scratch = with_image();
    let len = || fs::metadata(scratch.path("vm.img")).expect("stat").len();
    let resize = |words: &str| scratch.run(format!("disk resize vm.img {words}"));
    let server = scratch.serve("disk vm.img --nbd ./vm.nbd");
    resize("512K").failed(1, &["1048576 bytes", "would be lost", "--shrink"]);
    assert_eq!(len(), DISK_BYTES);
    // The image has grown since it was opened; its current length counts.
    scratch.sh("truncate -s 4M vm.img");
    resize("2M").failed(1, &["4194304 bytes", "--shrink"]);
    assert_eq!(len(), 4 << 20);
    for (words, said) in [
        ("2M --shrink", "vm.img: 2.0 MiB (2097152 bytes), shrunk from 4.0 MiB: data beyond"),
        ("3M", "vm.img: 3.0 MiB (3145728 bytes), grown from 2.0 MiB\n"),
        ("3M", "vm.img: 3.0 MiB (3145728 bytes), unchanged\n"),
        ("", "vm.img: 3.0 MiB (3145728 bytes), unchanged\n"),
    ] {
        let ran = resize(words).succeeded();
        assert!(ran.out.starts_with(said), "{words:?}: {}", ran.out);
    }
    assert_eq!(len(), 3 << 20);
    resize("--shrink").failed(2, &["SIZE"]);
    server.stop();
}

#[test]
fn second_guest_waits_for_disconnect_or_migration() {
    let scratch = with_image();
    let server = scratch.serve("disk vm.img --vhost-user vm.sock");
    let (mut first, mut queue) = guest(&scratch);
    let (mut second, mut waiting) = guest(&scratch);
    assert_eq!(second.config(0, 8).expect("the size"), (DISK_BYTES >> 9).to_le_bytes());
    let read = |queue: &mut DriverQueue| ask(queue, IN, 0, &[0; 512]);
    thread::scope(|scope| {
        let later = scope.spawn(|| read(&mut waiting));
        assert_eq!(ask(&mut queue, OUT, 0, &[7; 512]).1, 0);
        thread::sleep(Duration::from_millis(50));
        assert!(!later.is_finished());
        first.share_log().expect("a log");
        first.set_logging(true, &[&queue]).expect("logging");
        assert_eq!(ask(&mut queue, OUT, 0, &[8; 512]).1, 0);
        first.stop_queue(0).expect("stopped");
        assert_eq!(later.join().expect("served at last"), (vec![8; 512], 0));
    });
    drop((second, waiting));
    let base = queue.used_index();
    first.restart_queue(0, base, &queue).expect("started");
    assert_eq!(read(&mut queue), (vec![8; 512], 0));
    let (_third, mut waiting) = guest(&scratch);
    thread::scope(|scope| {
        let later = scope.spawn(|| read(&mut waiting));
        drop((first, queue));
        assert_eq!(later.join().expect("served at last"), (vec![8; 512], 0));
    });
    server.stop();
}

/// Returns a child of a process. The kernel may omit it while another one is reaped (proc(5)).
pub fn child_of(pid: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// Waits for a child of a process that is none of these.
pub fn next_child(pid: u32, before: &[u32]) -> u32 {
    let mut found = None;
    until("it has another child", || {
        found = child_of(pid).filter(|child| !before.contains(child));
        found.is_some()
    });
    found.expect("a child")
}

#[test]
fn kept_guest_survives_kill_of_disk_server() {
    let scratch = with_image();
    let before = scratch.listing();
    let server = scratch.serve("disk vm.img --keep --vhost-user vm.sock");
    assert!(server.said.contains(&format!("ready vhost-user-blk {} disk=vm.img", scratch.text("vm.sock"))));
    let (_driver, mut queue) = guest(&scratch);
    let mut victims = Vec::new();
    for round in 0..3 {
        assert_eq!(ask(&mut queue, OUT, round, &[round as u8 + 1; 512]).1, 0);
        victims.push(next_child(server.pid(), &victims));
        signal(victims[victims.len() - 1], "KILL");
    }
    for round in 0..3 {
        assert_eq!(ask(&mut queue, IN, round, &[0; 512]), (vec![round as u8 + 1; 512], 0));
    }
    scratch.run("top --once --json").says(&["vm.img"]);

    // All processes at once, as by a service manager.
    signal(next_child(server.pid(), &victims), "TERM");
    server.stop();
    assert_eq!(scratch.listing(), before);
}

#[test]
fn second_kept_guest_waits_even_across_server_kill() {
    let scratch = with_image();
    let server = scratch.serve("disk vm.img --keep --vhost-user vm.sock");
    let (first, mut queue) = guest(&scratch);
    thread::scope(|scope| {
        let second = scope.spawn(|| ask(&mut guest(&scratch).1, IN, 0, &[0; 512]));
        signal(next_child(server.pid(), &[]), "KILL");
        assert_eq!(ask(&mut queue, OUT, 0, &[7; 512]).1, 0);
        thread::sleep(Duration::from_millis(50));
        assert!(!second.is_finished());
        drop((first, queue));
        assert_eq!(second.join().expect("served at last"), (vec![7; 512], 0));
    });
    server.stop();
}

#[test]
fn upgrade_replaces_server_or_keeps_it_running() {
    let scratch = with_image();
    let server = scratch.serve("disk vm.img --keep --vhost-user vm.sock");
    let (_driver, mut queue) = guest(&scratch);
    assert_eq!(ask(&mut queue, OUT, 1, &[1; 512]).1, 0);
    let before = next_child(server.pid(), &[]);

    // A program that cannot start changes nothing.
    scratch.run("upgrade vm.img --to /bin/true").failed(1, &["upgrade vm.img", "the old server continues"]);
    until("the old one is there", || child_of(server.pid()) == Some(before));
    scratch.run("upgrade other.img").failed(1, &["no keeper", "--keep"]);

    // A program that fails after its start, or does not get ready, is followed by the old one. Other
    // processes write both files: a descriptor of ours open for writing could be inherited by another test's
    // child and make execution fail.
    for (end, reported) in [("exit 1", "has ended"), ("exec sleep 600", "was killed")] {
        let broken = format!(
            "printf '#!/bin/sh\\necho waiting\\nread -r line\\n{end}\\n' >{0} && chmod +x {0}",
            scratch.text("broken")
        );
        run("sh", &["-c", &broken]);
        let upgraded = scratch.run("upgrade vm.img --to broken");
        upgraded.failed(1, &[reported, "was started again"]);
        assert_eq!(ask(&mut queue, IN, 1, &[0; 512]), (vec![1; 512], 0));
    }

    let replaced = next_child(server.pid(), &[before]);
    let next = scratch.path("next");
    run("cp", &[env!("CARGO_BIN_EXE_tombolo"), &scratch.text("next")]);
    let upgraded = scratch.run("upgrade vm.img --to next").succeeded();
    upgraded.says(&[format!("vm.img is now served by {}", next.display())]);
    assert_eq!(ask(&mut queue, IN, 1, &[0; 512]), (vec![1; 512], 0));
    let now = next_child(server.pid(), &[]);
    assert_ne!(now, replaced);
    assert_eq!(fs::read_link(format!("/proc/{now}/exe")).expect("a program"), next);
    // The old program is also the one restarted.
    signal(now, "KILL");
    assert_eq!(ask(&mut queue, OUT, 2, &[2; 512]).1, 0);
    let last = next_child(server.pid(), &[now]);
    assert_eq!(fs::read_link(format!("/proc/{last}/exe")).expect("a program"), next);
    server.stop();
}

#[test]
fn server_ends_with_keeper_and_unlocks_disk() {
    let scratch = with_image();
    let words = "disk vm.img --keep --vhost-user vm.sock";
    let first = scratch.serve(words);
    let orphan = next_child(first.pid(), &[]);
    first.kill();
    until("its server has ended", || !Path::new(&format!("/proc/{orphan}")).exists());
    scratch.serve(words).stop();
}

#[test]
fn read_only_disk_is_shared_and_unchanged() {
    let scratch = with_image();
    let server = scratch.serve("disk vm.img --read-only --vhost-user vm.sock");
    server.says(&[format!(" size={DISK_BYTES} read-only\n")]);
    let (_first, _queue) = guest(&scratch);
    let (_second, mut queue) = guest(&scratch);
    assert_eq!(ask(&mut queue, OUT, 0, &[7; 512]).1, 1);
    assert_eq!(ask(&mut queue, IN, 0, &[7; 512]), (vec![0; 512], 0));
    server.stop();
}

#[test]
fn all_disk_server_threads_are_sandboxed_including_guests() {
    let scratch = with_image();
    let words = "disk vm.img --vhost-user vm.sock --nbd 0 --metrics 0 --sandbox strict";
    let server = scratch.serve_until(words, "ready metrics");
    server.says(&["ready sandbox landlock=on seccomp=on capabilities=none namespace=on\n"]);
    let (driver, mut queue) = guest(&scratch);
    assert_eq!(ask(&mut queue, OUT, 7, &[5; 512]).1, 0);
    for (field, wanted) in [("Seccomp:", "2"), ("CapEff:", "0000000000000000"), ("NoNewPrivs:", "1")] {
        let found = server.of_threads(field);
        assert!(found.len() > 4 && found.iter().all(|value| value == wanted), "{field} {found:?}");
    }
    drop((driver, queue));
    server.stop();
    assert!(!scratch.path("vm.sock").exists());
    let server = scratch.serve("disk vm.img --nbd ./n --sandbox off");
    assert!(server.of_threads("Seccomp:").iter().all(|value| value == "0"), "{}", server.said);
    server.stop();
    let ssh = "disk nfs+ssh://localhost/x/vm.img --nbd ./n --sandbox strict";
    scratch.run(ssh).failed(1, &["it starts another program", "--sandbox auto"]);
}

/// Returns the number of the image's pages in the host's page cache.
fn cached_pages(scratch: &Scratch) -> String {
    run("fincore", &["--noheadings", "--output", "PAGES", &scratch.text("vm.img")]).trim().to_owned()
}

#[test]
fn direct_disk_uses_io_uring_in_sandbox() {
    let scratch = with_image();
    let server = scratch.serve("disk vm.img --cache none --sandbox strict --vhost-user vm.sock");
    let (driver, mut queue) = guest(&scratch);
    let data = [5; 4096];
    assert_eq!(ask(&mut queue, OUT, 8, &data).1, 0);
    assert_eq!(ask(&mut queue, IN, 8, &data), (data.to_vec(), 0));
    assert_eq!(cached_pages(&scratch), "0");
    // Without a ring the pool's threads do the work.
    let has_ring =
        fs::read_to_string("/proc/sys/kernel/io_uring_disabled").is_ok_and(|value| value.trim() == "0");
    let names = server.of_threads("Name:");
    assert!(!has_ring || names.iter().any(|name| name == "disk-ring"), "{names:?}");
    assert!(server.of_threads("Seccomp:").iter().all(|value| value == "2"));
    drop((driver, queue));
    server.stop();
    let server = scratch.serve("disk vm.img --vhost-user vm.sock");
    let (_driver, mut queue) = guest(&scratch);
    assert_eq!(ask(&mut queue, IN, 8, &data), (data.to_vec(), 0));
    assert_ne!(cached_pages(&scratch), "0", "by default the cache is used");
    server.stop();
}

#[test]
fn invalid_disks_are_reported() {
    let scratch = with_image();
    scratch.all_fail(&[
        ("disk vm.img", 2, &["no endpoint given for disk vm.img", "--vhost-user SOCKET"]),
        ("disk missing.img --vhost-user s", 1, &["missing.img"]),
        ("disk tree --vhost-user s", 1, &["tree is neither a file nor a block device"]),
        ("disk plain --vhost-user s", 1, &["plain is empty"]),
        ("disk vm.img --vhost-user s --block-size 3000", 2, &["a power of two from 512 to 64K"]),
        ("disk vm.img --vhost-user s --serial 123456789012345678901", 2, &["visible ASCII characters"]),
        ("disk missing.img --keep --vhost-user s", 1, &["missing.img"]),
        ("disk vm.img --keep --nbd ./n", 2, &["--keep requires sockets for VMMs"]),
        ("disk vm.img --cache none --format qcow2 --vhost-user s", 2, &["raw image or block device"]),
        ("disk resize vm.img x", 2, &["a number of bytes"]),
    ]);
    let server = scratch.serve("disk vm.img --vhost-user vm.sock");
    let other = scratch.run("disk vm.img --vhost-user other.sock");
    other.failed(1, &["vm.img is in use by another process"]);
    server.stop();
}

#[test]
fn disk_info_covers_all_kinds_even_in_use() {
    let scratch = with_image();
    let image = fs::File::options().write(true).open(scratch.path("vm.img")).expect("open");
    // More than one request covers, with data at both ends.
    image.set_len(5 << 30).expect("truncate");
    for offset in [0, (5 << 30) - 8192] {
        image.write_all_at(&[1; 8192], offset).expect("write");
    }
    let server = scratch.serve("disk vm.img --nbd ./vm.nbd");
    let url = format!("nbd+unix:///vm.img?socket={}", scratch.text("vm.nbd"));
    for place in ["vm.img", &format!("dir:{}", scratch.text("vm.img")), &url] {
        let info = scratch.run(format!("disk info --json {place}")).succeeded();
        let facts = info.json();
        let numbers =
            ["size_bytes", "data_bytes", "zero_bytes", "hole_bytes"].map(|name| facts[name].as_u64());
        assert_eq!(numbers, [5 << 30, 16 << 10, 0, (5 << 30) - (16 << 10)].map(Some), "{place}");
    }
    scratch.run("disk info vm.img").succeeded().says(&["data    16K (16384 bytes)\n"]);
    scratch.run("disk info missing.img").failed(1, &["missing.img"]);
    server.stop();
}

#[test]
fn disk_without_server_ends_unless_dirty() {
    let scratch = Scratch::new();
    let (files, url) = scratch.serve_nfs();
    scratch.sparse("tree/vm.img", DISK_BYTES);
    let words = format!("disk {url}/vm.img --vhost-user vm.sock");
    let mut server = scratch.serve(&words);
    let (driver, mut queue) = guest(&scratch);
    assert_eq!(ask(&mut queue, OUT, 7, &[5; 512]).1, 0);
    files.signal("STOP");
    server.signal("TERM");
    thread::sleep(Duration::from_secs(7));
    assert!(lives(server.pid()), "what was written is not durable");
    files.signal("CONT");
    assert_eq!(server.wait().code(), Some(0));
    assert_eq!(fs::read(scratch.path("tree/vm.img")).expect("read")[7 * 512..][..512], [5; 512]);
    drop((driver, queue));

    // Also with an outstanding request.
    let server = scratch.serve(&words);
    let (_driver, mut queue) = guest(&scratch);
    assert_eq!(ask(&mut queue, IN, 7, &[0; 512]), (vec![5; 512], 0));
    files.kill();
    let [head, body, status] = [16, 512, 1].map(|len| queue.alloc(len).expect("guest memory"));
    queue.write(head, &(u128::from(IN) | 1900 << 64).to_le_bytes());
    queue.submit(&[head.readable(), body.writable(), status.writable()]).expect("room");
    thread::sleep(Duration::from_millis(300));
    server.stop();
}

#[test]
fn remote_file_serves_as_disk_with_its_length() {
    let scratch = Scratch::new();
    let files = scratch.serve("serve tree --nfs 0 --squash none --shm tree.shm");
    let image = scratch.path("tree/vm.img");
    let of_directory = format!("dir:{}", image.display());
    for place in [
        format!("nfs://{}/tree/vm.img", files.nfs_address()),
        format!("shm:{}/tree/vm.img", scratch.text("tree.shm")),
        of_directory.clone(),
    ] {
        scratch.sparse("tree/vm.img", DISK_BYTES);
        let server = scratch.serve(format!("disk {place} --vhost-user vm.sock --control disk.sock"));
        server.says(&[format!(" disk=vm.img size={DISK_BYTES}\n")]);
        let (driver, mut queue) = guest(&scratch);
        assert_eq!(ask(&mut queue, OUT, 7, &[5; 512]).1, 0, "{place}");
        assert_eq!(ask(&mut queue, FLUSH, 0, &[0; 512]).1, 0, "{place}");
        assert_eq!(ask(&mut queue, IN, 7, &[0; 512]), (vec![5; 512], 0), "{place}");
        assert_eq!(fs::read(&image).expect("read")[7 * 512..][..512], [5; 512], "{place}");
        drop((driver, queue));
        server.stop();
    }
    scratch.run(format!("disk {} --nbd ./s", of_directory.replace("vm.img", "none"))).failed(1, &["none"]);
    scratch.run(format!("disk {} --nbd ./s", of_directory.replace("/vm.img", ""))).failed(1, &["directory"]);

    let server = scratch.serve(format!("disk {of_directory} --vhost-user vm.sock"));
    let (mut driver, _queue) = guest(&scratch);
    scratch.sh("truncate -s 3M tree/vm.img");
    scratch.run(format!("disk resize {of_directory}")).succeeded();
    assert_eq!(driver.config(0, 8).expect("the size"), (3u64 << 20 >> 9).to_le_bytes());
    scratch.run(format!("disk resize {of_directory} 2M --shrink")).succeeded();
    assert_eq!(fs::metadata(&image).expect("stat").len(), 2 << 20);
    server.stop();
    files.stop();
}

/// Runs a foreign program, which must succeed, and returns its output.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = std::process::Command::new(program).args(arguments).output().expect(program);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    said
}

#[test]
fn qcow2_is_recognised_by_name_or_option_only() {
    let scratch = Scratch::new();
    let image = scratch.text("vm.qcow2");
    qemu_img(format!("create -q -f qcow2 {image} 8M"));
    let server = scratch.serve("disk vm.qcow2 --nbd ./vm.nbd --sandbox strict");
    let url = hint(&server.said, "libnbd:     nbdinfo");
    run("qemu-io", &["-f", "raw", "-c", "write -P 7 64k 4k", "-c", "discard 1M 1M", "-c", "flush", url]);
    server.stop();
    qemu_img(format!("check -q {image}"));
    run("qemu-io", &["-c", "read -P 7 64k 4k", &image]);
    // The same bytes under another name are a disk with these bytes, as if the guest had written them.
    fs::rename(&image, scratch.path("vm.img")).expect("renamed");
    let len = fs::metadata(scratch.path("vm.img")).expect("stat").len();
    let size_of = |words: &str| {
        let server = scratch.serve(words);
        let size = run("nbdinfo", &["--size", hint(&server.said, "libnbd:     nbdinfo")]);
        server.stop();
        size.trim().parse::<u64>().expect("a size")
    };
    assert_eq!(size_of("disk vm.img --nbd ./vm.nbd"), len - len % 512);
    assert_eq!(size_of("disk vm.img --format qcow2 --nbd ./vm.nbd"), 8 << 20);
    fs::create_dir(scratch.path("golden")).expect("made");
    fs::rename(scratch.path("vm.img"), scratch.path("golden/base")).expect("renamed");
    qemu_img(format!("create -q -f qcow2 -b golden/base -F qcow2 {image}"));
    scratch
        .run("disk vm.qcow2 --nbd ./vm.nbd")
        .failed(1, &["golden/base", "another directory", "--backing-dir"]);
    assert_eq!(size_of("disk vm.qcow2 --backing-dir golden --nbd ./vm.nbd"), 8 << 20);
}

pub fn qemu_img(line: impl AsRef<str>) -> String {
    run("qemu-img", &words(&line))
}

/// Returns the quoted or plain word after `word` in a ready line's hints.
pub fn hint<'a>(said: &'a str, word: &str) -> &'a str {
    let line = said.lines().find_map(|line| line.trim().strip_prefix(word)).expect("a hint");
    line.trim().trim_matches('\'')
}

#[test]
fn nbd_disk_is_reachable_by_ready_line_hints() {
    let scratch = with_image();
    let server = scratch.serve("disk vm.img --nbd ./vm.nbd --nbd 0");
    server.says(&[
        format!("ready nbd unix:{} disk=vm.img size={DISK_BYTES}\n", scratch.text("vm.nbd")),
        format!("nbd-client -unix {} /dev/nbd0 -N vm.img\n", scratch.text("vm.nbd")),
        "ready nbd 127.0.0.1:".to_owned(),
    ]);
    let url = hint(&server.said, "libnbd:     nbdinfo");
    assert_eq!(run("nbdinfo", &["--size", url]).trim(), DISK_BYTES.to_string());
    run("qemu-io", &["-f", "raw", "-c", "write -P 7 64k 4k", url]);
    let tcp = server.said.split_once("ready nbd 127.0.0.1:").expect("TCP").1;
    let tcp = hint(tcp, "libnbd:     nbdinfo").to_owned();
    run("qemu-io", &["-f", "raw", "-c", "read -P 7 64k 4k", &tcp]);

    let before = scratch.serve(format!("disk {tcp} --nbd ./second.nbd --control second.sock"));
    let second = hint(&before.said, "libnbd:     nbdinfo");
    run("qemu-io", &["-f", "raw", "-c", "read -P 7 64k 4k", "-c", "write -P 8 0 4k", "-c", "flush", second]);
    assert_eq!(fs::read(scratch.path("vm.img")).expect("read")[..4096], [8; 4096]);
    before.stop();
    server.stop();
    assert!(!scratch.path("vm.nbd").exists() && !scratch.path("second.nbd").exists());
    scratch.run("disk vm.img").failed(2, &["--nbd ADDR"]);
    scratch.run("disk nbd://:x/ --nbd ./s").failed(2, &["nbd[s]://HOST[:PORT]/EXPORT"]);
}

#[test]
fn nbd_tls_disk_requires_certificate() {
    let scratch = with_image();
    scratch.run("keys ca --ca ca").succeeded();
    scratch.run("keys issue server --host 127.0.0.1 --ca ca --out server").succeeded();
    scratch.run("keys issue alice --ca ca --out alice").succeeded();
    let server = scratch.serve("disk vm.img --nbd-tls 127.0.0.1:0 --tls-dir server");
    let at =
        server.said.split_once("ready nbd ").and_then(|(_, rest)| rest.split_once(' ')).expect("a line").0;
    let url = format!("nbds://{at}/vm.img?tlsdir={}", scratch.text("alice"));
    let words = format!("disk {url} --nbd ./second.nbd --control second.sock --sandbox strict");
    let second = scratch.serve(&words);
    let through = hint(&second.said, "libnbd:     nbdinfo");
    run("qemu-io", &["-f", "raw", "-c", "write -P 8 0 4k", "-c", "flush", through]);
    assert_eq!(fs::read(scratch.path("vm.img")).expect("read")[..4096], [8; 4096]);
    second.stop();
    scratch.all_fail(&[
        (&format!("disk info nbd://{at}/vm.img"), 1, &["the server requires TLS: use nbds://"]),
        (&format!("disk info nbds://{at}/vm.img?tlsdir=none"), 1, &["none/", "?tlsdir=DIR"]),
        (&format!("disk info nbds://{at}/vm.img?dir=none"), 2, &["write ?tlsdir=DIR"]),
    ]);
    server.stop();
}
