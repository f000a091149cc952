//! `tombolo image`: descriptions of a VM's files, and their use by a proxy.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use crate::common::far::Far;
use crate::common::{Scratch, until};

const BLOCK: usize = 4096;

/// Returns a memory file of so many pages; every tenth has distinct contents.
fn memory(pages: usize) -> Vec<u8> {
    let mut bytes = vec![0; pages * BLOCK];
    for page in (0..pages).step_by(10) {
        let text = format!("page {page} ").repeat(BLOCK / 6);
        bytes[page * BLOCK..(page + 1) * BLOCK].copy_from_slice(&text.as_bytes()[..BLOCK]);
    }
    bytes
}

/// Creates the directory of a VM: a configuration, a sparse disk with two equal blocks, and a memory, whose
/// contents are returned.
fn make_image(dir: &Path) -> Vec<u8> {
    fs::create_dir(dir).expect("mkdir");
    fs::write(dir.join("vm.toml"), "mem = \"4M\"\n").expect("write");
    let disk = File::create(dir.join("disk")).expect("create");
    disk.set_len((64 << 20) + 100).expect("extend");
    for at in [3 << 20, 40 << 20] {
        disk.write_all_at(&[7; BLOCK], at).expect("write");
    }
    let memory = memory(1000);
    fs::write(dir.join("memory"), &memory).expect("write");
    memory
}

impl Scratch {
    fn image_info(&self, dir: &str) -> serde_json::Value {
        self.run(format!("image info --json {dir}")).succeeded().json()
    }
}

#[test]
fn scan_describes_files_until_they_change() {
    let scratch = Scratch::new();
    let dir = scratch.path("vm");
    make_image(&dir);
    fs::set_permissions(dir.join("memory"), fs::Permissions::from_mode(0o600)).expect("chmod");
    let scanned = scratch.run("image scan vm --advice memory=whole").succeeded();
    assert!(scanned.out.starts_with("3 files with 68M, of which 68M zeroes"), "{}", scanned.out);

    let told = scratch.image_info("vm");
    let [disk, memory, config] = ["disk", "memory", "vm.toml"].map(|name| {
        let files = told["files"].as_array().expect("files");
        files.iter().find(|file| file["name"] == name).expect("it is there").clone()
    });
    assert_eq!(
        (&disk["zero_bytes"], &disk["equal_bytes"]),
        (&((64 << 20) + 100 - 8192).into(), &4096.into())
    );
    assert_eq!((&memory["zero_bytes"], &memory["equal_bytes"]), (&(900 * BLOCK).into(), &0.into()));
    assert_eq!((&config["zero_bytes"], &config["size_bytes"]), (&0.into(), &11.into()));
    assert_eq!((&disk["advice"], &memory["advice"]), (&"on-demand".into(), &"whole".into()));
    assert!([&disk, &memory, &config].iter().all(|file| file["state"] == "fits"), "{told}");
    let mode = fs::metadata(dir.join(".tombolo-image")).expect("a sidecar").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "those that may not read the memory may not read what is said of it");

    // Same length as before.
    fs::write(dir.join("vm.toml"), "mem = \"8M\"\n").expect("write");
    fs::remove_file(dir.join("disk")).expect("remove");
    let said = scratch.run("image info vm").succeeded();
    let state = |name: &str| said.out.lines().find(|line| line.starts_with(name)).map(str::to_owned);
    assert!(state("vm.toml").is_some_and(|line| line.contains("changed")), "{}", said.out);
    assert!(state("disk").is_some_and(|line| line.contains("missing")), "{}", said.out);
    scratch.run("image scan vm --block 64K --no-digests").succeeded();
    let told = scratch.image_info("vm");
    assert_eq!(told["files"].as_array().expect("files").len(), 2);
    assert_eq!(told["files"][0]["block_bytes"], 65536);
    assert!(told["files"][0]["equal_bytes"].is_null(), "{told}");
}

#[test]
fn scan_reports_unreadable_files() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("empty")).expect("mkdir");
    fs::write(scratch.path("tree/.tombolo-image"), "#!/bin/sh\n# not one of ours\n").expect("write");
    scratch.all_fail(&[
        ("image scan nothere", 1, &["cannot scan nothere", "No such file"]),
        ("image scan empty", 1, &["it contains no files"]),
        ("image scan tree --block 5K", 2, &["--block 64K"]),
        ("image scan tree --advice file=eager", 2, &["FILE=whole"]),
        ("image scan tree --advice nothere=whole", 1, &["nothere", "not in the directory"]),
        ("image info empty", 1, &["tombolo image scan empty"]),
        ("image info tree", 1, &["not an image sidecar"]),
        ("image rehearse tree --share a=tree --share a=mnt", 2, &["each with its own tag"]),
    ]);
}

#[test]
fn proxy_skips_zeroes_listed_in_sidecar() {
    let Some(far) = Far::new() else { return };
    let memory = make_image(&far.tree("vm"));
    let scratch = &far.place.0;
    scratch.run("image scan tree/vm").succeeded();
    let url = far.url("");
    let zeros = (900 * BLOCK + (64 << 20) + 100 - 8192) as u64;
    for (more, expected) in [("", zeros), ("--no-sidecars", 0)] {
        let words = format!("proxy {url} --cache cache --fuse mnt --control proxy.sock");
        let proxy = scratch.serve(format!("{words} {more}"));
        assert!(fs::read(far.mnt("vm/memory")).expect("read") == memory);
        assert!(fs::read(far.mnt("vm/disk")).expect("read") == fs::read(far.tree("vm/disk")).expect("read"));
        let counts = far.cache_counts("proxy.sock");
        assert_eq!(counts["zero_bytes"], expected, "{counts}");
        let count = |name: &str| counts[name].as_u64().expect("a count");
        // The data of both files, with one duplicate block, and the sidecar.
        let fetched = count("fetched_bytes") + count("equal_bytes");
        let data = (memory.len() as u64 + (64 << 20) + 100) - expected;
        assert!(fetched >= data && fetched < data + (64 << 10), "{counts}");
        proxy.stop();
        scratch.run("cache drop cache").succeeded();
    }
}

#[test]
fn proxy_prefetches_recorded_trace() {
    let Some(far) = Far::new() else { return };
    let memory = make_image(&far.tree("vm"));
    fs::write(far.tree("vm/program"), crate::common::numbers()).expect("write");
    let scratch = &far.place.0;
    let url = far.url("");
    let start = |cache: &str, more: &str| {
        // Not close-to-open: data fetched right after a change would be revalidated at the next open.
        let words = format!("proxy {url} --cache {cache} --contract exclusive --no-lease --fuse mnt");
        let rule = "--rule *,prefetch=no,read-ahead=0";
        scratch.serve(format!("{words} {rule} --control proxy.sock {more}"))
    };
    let proxy = start("cache", "--record start.trace");
    let program = fs::read(far.mnt("vm/program")).expect("read");
    assert!(fs::read(far.mnt("vm/memory")).expect("read") == memory);
    proxy.stop();
    scratch.run("image scan tree/vm --trace start.trace").succeeded();
    assert!(scratch.image_info("tree/vm")["trace_steps"].as_u64().is_some_and(|steps| steps > 0));

    let proxy = start("cache2", "");
    let memory_file = File::open(far.mnt("vm/memory")).expect("open");
    memory_file.read_exact_at(&mut [0; 100], 0).expect("read");
    // Nothing is fetched by read-around.
    let sidecar = fs::metadata(far.tree("vm/.tombolo-image")).expect("a sidecar").len();
    let all = (memory.len() - 900 * BLOCK + program.len()) as u64 + sidecar;
    until("all of the trace is there", || {
        far.cache_counts("proxy.sock")["fetched_bytes"].as_u64() >= Some(all)
    });
    assert!(fs::read(far.mnt("vm/program")).expect("read") == program);
    assert!(fs::read(far.mnt("vm/memory")).expect("read") == memory);
    assert_eq!(far.cache_counts("proxy.sock")["fetched_bytes"], all, "all was here");
    drop(memory_file);
    proxy.stop();
    scratch.all_fail(&[
        ("image scan tree/vm --trace nothere", 1, &["nothere: No such file"]),
        ("image scan tree/vm --trace plain", 1, &["plain has no entries for its files"]),
    ]);
}
