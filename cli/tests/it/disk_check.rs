//! `tombolo disk check` and what `disk info` says of images, against qemu-img.

use std::fs;
use std::os::unix::fs::FileExt;

use crate::common::Scratch;
use crate::disk::run;

const MIB: u64 = 1 << 20;

/// `clone.qcow2`, which stands on `golden.qcow2`, which stands on `base.img`.
fn with_chain() -> Scratch {
    let scratch = Scratch::new();
    fs::File::create(scratch.path("base.img")).and_then(|file| file.set_len(8 * MIB)).expect("create");
    let create = |name: &str, below: &str, format: &str| {
        let path = scratch.text(name);
        let words = ["create", "-q", "-f", "qcow2", "-b", below, "-F", format, &path];
        run("qemu-img", &words);
        run("qemu-io", &["-f", "qcow2", "-c", "write -P 7 1M 128k", &path]);
    };
    create("golden.qcow2", "base.img", "raw");
    create("clone.qcow2", "golden.qcow2", "qcow2");
    scratch
}

#[test]
fn what_an_image_stands_on_is_told_as_qemu_tells_it() {
    let scratch = with_chain();
    let told = scratch.run(&["disk", "info", "clone.qcow2"]);
    told.succeeded();
    let below = [("golden.qcow2", "qcow2"), ("base.img", "raw")];
    let below = below.map(|(name, format)| format!("over    {} ({format})\n", scratch.text(name)));
    assert!(told.out.ends_with(&below.concat()), "{}", told.out);
    let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
    let ours = json(&scratch.run(&["disk", "info", "--json", "clone.qcow2"]).out);
    let words = ["info", "--backing-chain", "--output=json", &scratch.text("clone.qcow2")];
    let of_qemu = json(&run("qemu-img", &words));
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
fn a_check_tells_damage_from_lost_room_and_names_the_image() {
    let scratch = with_chain();
    let sound = scratch.run(&["disk", "check", "clone.qcow2"]);
    sound.succeeded();
    assert!(sound.out.ends_with("clone.qcow2 is sound: 8.0 MiB of data were read\n"), "{}", sound.out);
    scratch.run(&["disk", "check", "base.img"]).succeeded();

    // The counts, of two bytes each, lie in the third cluster of an image that QEMU has made.
    let count = |name: &str, cluster: u64, count: u16| {
        let image = fs::File::options().write(true).open(scratch.path(name)).expect("open");
        image.write_all_at(&count.to_be_bytes(), (2 << 16) + cluster * 2).expect("write");
        image
    };
    let end = fs::metadata(scratch.path("clone.qcow2")).expect("stat").len().next_multiple_of(1 << 16);
    count("clone.qcow2", end >> 16, 1).set_len(end + 1).expect("longer");
    let leaks = scratch.run(&["disk", "check", "clone.qcow2"]);
    leaks.succeeded();
    assert!(leaks.out.contains("64.0 KiB are counted and not used: qemu-img"), "{}", leaks.out);
    // What frees it below an overlay changes what that stands on.
    scratch.run(&["disk", "create", "vm.overlay", "--base", "clone.qcow2"]).succeeded();
    let below = scratch.run(&["disk", "check", "vm.overlay"]);
    below.succeeded();
    assert!(below.out.contains("counted and not used: to change a base makes"), "{}", below.out);
    assert!(!below.out.contains("qemu-img"), "{}", below.out);

    count("golden.qcow2", 5, 0);
    let damaged = scratch.run(&["disk", "check", "clone.qcow2", "--json"]);
    assert_eq!(damaged.code, Some(1), "{damaged:?}");
    let found: serde_json::Value = serde_json::from_str(&damaged.out).expect("JSON");
    let counts: Vec<_> = found["images"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|image| image["damages_count"].as_u64())
        .collect();
    assert_eq!(counts, [Some(0), Some(2)]);
    assert!(
        damaged.out.contains("a cluster is used more often than is counted at 0x50000"),
        "{}",
        damaged.out
    );

    let server = scratch.serve(&["disk", "base.img", "--nbd", "./base.nbd"], "ready control");
    scratch.run(&["disk", "check", "base.img"]).failed(1, &["base.img is in use"]);
    server.stop();
}
