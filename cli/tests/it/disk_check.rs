//! `tombolo disk check` and `disk info`, compared with qemu-img.

use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Command;

use crate::common::{Scratch, overwrite, words};
use crate::disk::{qemu_img, run};

const MIB: u64 = 1 << 20;

/// Creates `clone.qcow2`, based on `golden.qcow2`, based on `base.img`.
fn with_chain() -> Scratch {
    let scratch = Scratch::new();
    scratch.sparse("base.img", 8 * MIB);
    let create = |name: &str, below: &str, format: &str| {
        let path = scratch.text(name);
        qemu_img(format!("create -q -f qcow2 -b {below} -F {format} {path}"));
        run("qemu-io", &["-f", "qcow2", "-c", "write -P 7 1M 128k", &path]);
    };
    create("golden.qcow2", "base.img", "raw");
    create("clone.qcow2", "golden.qcow2", "qcow2");
    scratch
}

#[test]
fn backing_chain_is_reported_like_qemu() {
    let scratch = with_chain();
    let told = scratch.run("disk info clone.qcow2").succeeded();
    let below = [("golden.qcow2", "qcow2"), ("base.img", "raw")];
    let below = below.map(|(name, format)| format!("over    {} ({format})\n", scratch.text(name)));
    assert!(told.out.ends_with(&below.concat()), "{}", told.out);
    let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
    let ours = json(&scratch.run("disk info --json clone.qcow2").out);
    let of_qemu =
        json(&qemu_img(format!("info --backing-chain --output=json {}", scratch.text("clone.qcow2"))));
    let (ours, of_qemu) = (ours["images"].as_array().expect("a list"), of_qemu.as_array().expect("a list"));
    assert_eq!(ours.len(), of_qemu.len());
    for (ours, of_qemu) in ours.iter().zip(of_qemu) {
        for (name, of_theirs) in
            [("format", "format"), ("size_bytes", "virtual-size"), ("cluster_bytes", "cluster-size")]
        {
            assert_eq!(ours[name], of_qemu[of_theirs], "{name}");
        }
    }
}

#[test]
fn check_distinguishes_damage_from_leaks() {
    let scratch = with_chain();
    let sound = scratch.run("disk check clone.qcow2").succeeded();
    assert!(sound.out.ends_with("clone.qcow2 is sound: 8.0 MiB of data read\n"), "{}", sound.out);
    scratch.run("disk check base.img").succeeded();

    // The reference counts, of two bytes, are in the third cluster of an image created by QEMU.
    let count = |name: &str, cluster: u64, count: u16| {
        let image = fs::File::options().write(true).open(scratch.path(name)).expect("open");
        image.write_all_at(&count.to_be_bytes(), (2 << 16) + cluster * 2).expect("write");
        image
    };
    let end = fs::metadata(scratch.path("clone.qcow2")).expect("stat").len().next_multiple_of(1 << 16);
    count("clone.qcow2", end >> 16, 1).set_len(end + 1).expect("longer");
    let leaks = scratch.run("disk check clone.qcow2").succeeded();
    leaks.says(&["64.0 KiB leaked: free them with qemu-img"]);
    // Repairing an image below an overlay would change the overlay's base.
    scratch.run("disk create vm.overlay --base clone.qcow2").succeeded();
    let below = scratch.run("disk check vm.overlay").succeeded();
    below.says(&["leaked: repairing a base"]);
    assert!(!below.out.contains("qemu-img"), "{}", below.out);

    count("golden.qcow2", 5, 0);
    let damaged = scratch.run("disk check clone.qcow2 --json");
    assert_eq!(damaged.code, Some(1), "{damaged:?}");
    let found = damaged.json();
    let counts: Vec<_> = found["images"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|image| image["damages_count"].as_u64())
        .collect();
    assert_eq!(counts, [Some(0), Some(2)]);
    damaged.says(&["cluster with more references than its refcount at 0x50000"]);

    let server = scratch.serve("disk base.img --nbd ./base.nbd");
    scratch.run("disk check base.img").failed(1, &["base.img is in use"]);
    server.stop();
}

/// Asserts that each command that opens `image` refuses it with `words` and leaves no files.
#[track_caller]
fn is_refused(scratch: &Scratch, image: &str, words: &[&str]) {
    for command in [
        format!("disk check {image}"),
        format!("disk info {image}"),
        format!("disk convert {image} refused.img"),
        format!("disk create refused.overlay --base {image}"),
        // Last: if it is not refused, it is served until killed.
        format!("disk {image} --nbd ./refused.nbd"),
        format!("disk {image} --read-only --nbd ./refused.nbd"),
    ] {
        scratch.all_fail(&[(&command, 1, words)]);
    }
}

#[test]
fn an_encrypted_image_is_refused_wherever_it_is_opened() {
    let scratch = Scratch::new();
    // QEMU would measure for seconds how many iterations its key derivation can take.
    for (format, more) in [("luks", ",encrypt.iter-time=10"), ("aes", "")] {
        let (name, over) = (format!("{format}.qcow2"), format!("over-{format}.qcow2"));
        let path = scratch.text(&name);
        let secret = "secret,id=key,data=abc";
        let options = format!("encrypt.format={format},encrypt.key-secret=key{more}");
        let create = format!("create -q -f qcow2 --object {secret} -o {options} {path} 4M");
        // QEMU measures its key derivation by thread CPU time, and fails if none has passed ("accurate CPU
        // usage").
        let is_made = (0..100)
            .any(|_| Command::new("qemu-img").args(words(&create)).status().expect("qemu-img").success());
        assert!(is_made, "{format}");
        let before = fs::read(&path).expect("read");
        qemu_img(format!("create -q -u -f qcow2 -b {name} -F qcow2 {} 4M", scratch.text(&over)));
        for image in [&name, &over] {
            is_refused(&scratch, image, &[&name, "it is encrypted"]);
        }
        assert!(fs::read(&path).expect("read") == before, "{format}");
    }
    // The base of an overlay is replaced by an encrypted image.
    scratch.run("disk create plain.qcow2 --size 4M").succeeded();
    scratch.run("disk create vm.overlay --base plain.qcow2").succeeded();
    fs::rename(scratch.path("luks.qcow2"), scratch.path("plain.qcow2")).expect("rename");
    is_refused(&scratch, "vm.overlay", &["plain.qcow2", "it is encrypted"]);
}

#[test]
fn features_that_are_not_supported_are_named() {
    let scratch = Scratch::new();
    let create = |name: &str, options: &str| {
        qemu_img(format!("create -q -f qcow2 {options} {} 4M", scratch.text(name)));
    };
    create("zstd.qcow2", "-o compression_type=zstd");
    create("sub.qcow2", "-o extended_l2=on");
    for (name, feature) in [("dirty.qcow2", 1_u64), ("later.qcow2", 1 << 40)] {
        create(name, "");
        overwrite(scratch.path(name), 72, &feature.to_be_bytes());
    }
    for (name, size_bytes) in [("huge.qcow2", 1_u64 << 56), ("most.qcow2", 1 << 63), ("short.qcow2", 1 << 50)]
    {
        create(name, "");
        overwrite(scratch.path(name), 24, &size_bytes.to_be_bytes());
    }
    is_refused(&scratch, "huge.qcow2", &["its size is 72057594037927936 bytes", "not supported"]);
    is_refused(&scratch, "most.qcow2", &["its size is", "not supported"]);
    is_refused(&scratch, "short.qcow2", &["its L1 table is too small for its size"]);
    for (name, words) in [
        ("zstd.qcow2", "its compression type is zstd"),
        ("sub.qcow2", "it has extended L2 entries"),
        ("dirty.qcow2", "it is dirty"),
        ("later.qcow2", "unknown incompatible features: 0x10000000000"),
    ] {
        is_refused(&scratch, name, &[name, "is not supported", words]);
        let said = scratch.run(format!("disk check {name}"));
        assert!(!format!("{said:?}").contains("sound"), "{said:?}");
    }
}
