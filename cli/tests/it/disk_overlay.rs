//! Overlays: writes, bases, and refusals.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};

use crate::common::{Scratch, numbers, overwrite};
use crate::disk::{hint, qemu_img, run};

const MIB: u64 = 1 << 20;
const DISK_BYTES: u64 = 256 * MIB;

fn make_golden(scratch: &Scratch, name: &str) {
    scratch.sparse(name, DISK_BYTES).write_all_at(numbers().as_bytes(), MIB).expect("write");
}

fn with_golden() -> Scratch {
    let scratch = Scratch::new();
    make_golden(&scratch, "golden.img");
    scratch
}

/// Runs QEMU's tool on a served disk; no command fails, and what is read is as expected.
pub fn qemu_io(scratch: &Scratch, words: &str, commands: &[&str]) {
    let server = scratch.serve(format!("disk {words} --nbd ./it.nbd"));
    let url = hint(&server.said, "libnbd:     nbdinfo").to_owned();
    let commands: Vec<&str> = commands.iter().flat_map(|command| ["-c", command]).collect();
    let said = run("qemu-io", &[&["-f", "raw"], &commands[..], &[&url]].concat());
    server.stop();
    assert!(!said.contains("fail"), "{said}");
}

#[test]
fn overlays_share_unchanged_base() {
    let scratch = with_golden();
    let before = fs::read(scratch.path("golden.img")).expect("read");
    for name in ["one", "two"] {
        let file = format!("{name}.overlay");
        scratch.run(format!("disk create {file} --base golden.img")).succeeded();
        assert!(fs::metadata(scratch.path(&file)).expect("stat").blocks() * 512 < MIB, "nothing is copied");
    }
    let strict = "one.overlay --sandbox strict";
    qemu_io(
        &scratch,
        strict,
        &["write -P 1 1049088 512", "write -P 2 200M 1M", "discard 1052672 4096", "flush"],
    );
    qemu_io(&scratch, "two.overlay", &["write -P 3 200M 4k"]);
    let expected = fs::File::options().write(true).open({
        fs::copy(scratch.path("golden.img"), scratch.path("expected.img")).expect("copy");
        scratch.path("expected.img")
    });
    let expected = expected.expect("open");
    expected.write_all_at(&[1; 512], 1_049_088).expect("write");
    expected.write_all_at(&[2; MIB as usize], 200 * MIB).expect("write");
    expected.write_all_at(&[0; 4096], 1_052_672).expect("write");
    // An overlay and its base can be moved together.
    fs::create_dir(scratch.path("elsewhere")).expect("mkdir");
    for name in ["golden.img", "one.overlay"] {
        fs::rename(scratch.path(name), scratch.path("elsewhere").join(name)).expect("move");
    }
    scratch.run("disk convert elsewhere/one.overlay whole.img --verify").succeeded();
    let same = qemu_img(format!("compare {} {}", scratch.text("whole.img"), scratch.text("expected.img")));
    assert!(same.contains("identical"), "{same}");
    assert!(fs::read(scratch.path("elsewhere/golden.img")).expect("read") == before, "the base is as it was");
    let info = scratch.run("disk info elsewhere/one.overlay").succeeded();
    assert!(info.out.contains("over    ") && info.out.contains("golden.img (raw)"), "{}", info.out);
    scratch.run("disk check two.overlay --base elsewhere/golden.img").succeeded();
}

#[test]
fn overlay_supports_overlay_and_remote_bases() {
    let scratch = Scratch::new();
    let (files, url) = scratch.serve_nfs();
    make_golden(&scratch, "tree/golden.img");
    let base = format!("{url}/golden.img");
    scratch.run(format!("disk create one.overlay --base {base} --size 300M")).succeeded();
    scratch.run("disk info one.overlay").failed(1, &["nfs://", "--base DISK"]);
    qemu_io(
        &scratch,
        &format!("one.overlay --base {base}"),
        &["write -P 7 0 4k", "read -P 0 256M 44M", "read -P 7 0 4k"],
    );
    // Likewise an overlay of it, with both bases given.
    scratch.run("disk create two.overlay --base one.overlay").failed(1, &["nfs://", "--base DISK"]);
    let both = format!("--base one.overlay --base {base}");
    scratch.run(format!("disk create two.overlay {both}")).succeeded();
    qemu_io(
        &scratch,
        &format!("two.overlay {both}"),
        &["write -P 8 4k 4k", "read -P 7 0 4k", "read -P 8 4k 4k"],
    );
    let info = scratch.run(format!("disk info two.overlay {both}")).succeeded();
    info.says(&["one.overlay (overlay)", "golden.img (raw)"]);
    scratch.run(format!("disk check two.overlay {both}")).succeeded();
    let from = format!("disk convert two.overlay {both}");
    scratch.run(format!("{from} {base} --force")).failed(2, &["which is part of its backing chain"]);
    scratch.run(format!("{from} two.img --verify")).succeeded();
    // The base is not overwritten under any of its names.
    let golden = scratch.path("tree/golden.img");
    fs::hard_link(&golden, scratch.path("tree/same.img")).expect("link");
    let now = || fs::metadata(&golden).and_then(|it| Ok((it.len(), it.modified()?))).expect("stat");
    let before = now();
    for to in [base.clone(), format!("{url}/same.img")] {
        let from = format!("disk convert one.overlay --base {base}");
        scratch.run(format!("{from} {to} --force")).failed(2, &["which is part of its backing chain"]);
        scratch.run(format!("disk convert {base} {to} --force")).failed(2, &["into itself"]);
    }
    assert_eq!(now(), before, "the base is as it was");
    files.stop();
    fs::create_dir(scratch.path("golden")).expect("mkdir");
    fs::rename(scratch.path("tree/golden.img"), scratch.path("golden/golden.img")).expect("move");
    scratch.run("disk create below.overlay --base golden/golden.img").succeeded();
    scratch.run("disk create above.overlay --base below.overlay").failed(1, &["--backing-dir DIR"]);
    assert!(!scratch.path("above.overlay").exists());
    scratch.run("disk create above.overlay --base below.overlay --backing-dir golden").succeeded();
    let first = numbers().as_bytes()[0];
    let read = format!("read -P {first} 1M 1");
    qemu_io(&scratch, "above.overlay --backing-dir golden", &["write -P 9 2M 64k", &read]);
}

#[test]
fn overlay_detects_change_in_qcow2_backing_file() {
    let scratch = with_golden();
    let words = "create -q -f qcow2 -b golden.img -F raw";
    qemu_img(format!("{words} {}", scratch.text("middle.qcow2")));
    scratch.run("disk create vm.overlay --base middle.qcow2").succeeded();
    let info = scratch.run("disk info vm.overlay").succeeded();
    info.says(&["middle.qcow2 (qcow2)", "golden.img (raw)"]);
    scratch
        .run("disk convert vm.overlay golden.img --force")
        .failed(2, &["which is part of its backing chain"]);
    overwrite(scratch.path("golden.img"), 0, b"changed");
    scratch.run("disk info vm.overlay").failed(1, &["the base", "restore the original base"]);
}

#[test]
fn overlay_with_changed_base_or_busy_is_refused() {
    let scratch = with_golden();
    scratch.run("disk create vm.overlay --base golden.img").succeeded();
    let server = scratch.serve("disk vm.overlay --nbd ./it.nbd");
    scratch.all_fail(&[
        ("disk vm.overlay --nbd ./other.nbd --control other.sock", 1, &["vm.overlay is in use"]),
        ("disk golden.img --nbd ./other.nbd --control other.sock", 1, &["golden.img is in use"]),
        ("disk create vm.overlay --base golden.img", 1, &["File exists"]),
    ]);
    server.stop();
    scratch.all_fail(&[
        ("disk create new.overlay", 2, &["--base DISK"]),
        ("disk create new.img", 2, &["--size SIZE"]),
        (
            "disk create new.img --base golden.img --size 1G",
            2,
            &["--base requires an overlay", "NAME.overlay"],
        ),
        ("disk create new.overlay --base none.img", 1, &["none.img"]),
        ("disk convert golden.img new.overlay", 1, &["disk create"]),
    ]);
    assert!(!scratch.path("new.overlay").exists());
    overwrite(scratch.path("golden.img"), 0, b"changed");
    scratch.run("disk info vm.overlay").failed(1, &["the base", "restore the original base"]);
    fs::write(scratch.path("vm.overlay"), [0; 8192]).expect("write");
    scratch.run("disk info vm.overlay").failed(1, &["not an overlay"]);
    run("mkfifo", &[&scratch.text("pipe.overlay")]);
    scratch.run("disk info pipe.overlay").failed(1, &["neither a file"]);
    scratch.run("disk create new.img --size 1M").succeeded();
    scratch.run("disk create new.qcow2 --size 1M").succeeded();
    assert!(qemu_img(format!("info {}", scratch.text("new.qcow2"))).contains("1 MiB"));
}

/// Creates a chain of `above`, `middle` and `below` on the golden image, with the expected contents.
fn with_chain() -> Scratch {
    let scratch = with_golden();
    let writes = ["write -P 1 1049088 512", "write -P 2 200M 64k", "discard 1M 4k"];
    for (name, base, write) in [
        ("below.overlay", "golden.img", "write -P 3 0 1M"),
        ("middle.overlay", "below.overlay", "write -P 4 512k 1M"),
        ("above.overlay", "middle.overlay", writes[0]),
    ] {
        scratch.run(format!("disk create {name} --base {base}")).succeeded();
        let rest = if name == "middle.overlay" { &writes[1..] } else { &[] };
        qemu_io(&scratch, name, &[&[write], rest].concat());
    }
    scratch.run("disk convert above.overlay expected.img").succeeded();
    scratch
}

fn is_expected(scratch: &Scratch, name: &str) -> bool {
    scratch.run(format!("disk convert {name} found.img --force")).succeeded();
    is_same(scratch, "found.img", "expected.img")
}

/// Compares two disks without reading their holes.
fn is_same(scratch: &Scratch, one: &str, other: &str) -> bool {
    let [one, other] = [one, other].map(|name| scratch.path(name));
    let len = |path| fs::metadata(path).expect("stat").len();
    let mut compare = scratch.program("qemu-img", &["compare", "-q", "-f", "raw", "-F", "raw"]);
    len(&one) == len(&other) && compare.args([&one, &other]).status().expect("qemu-img").success()
}

#[test]
fn merge_preserves_contents_and_dependent_overlays() {
    let scratch = with_chain();
    // Leftover of a killed merge.
    fs::write(scratch.path(".middle.overlay.tombolo-part"), [7; 100_000]).expect("write");
    let below = fs::read(scratch.path("below.overlay")).expect("read");
    scratch.run("disk merge middle.overlay").succeeded();
    let info = scratch.run("disk info middle.overlay");
    assert!(info.out.contains("golden.img") && !info.out.contains("below.overlay"), "{}", info.out);
    assert!(is_expected(&scratch, "above.overlay"));
    assert!(
        fs::read(scratch.path("below.overlay")).expect("read") == below,
        "other overlays may be based on it"
    );
    scratch.run("disk create other.overlay --base middle.overlay").succeeded();
    // State left by a kill before the removal.
    scratch.sh("cp -p above.overlay left.overlay");
    scratch.run("disk merge --into-base above.overlay").succeeded();
    assert!(!scratch.path("above.overlay").exists());
    scratch.run("disk merge --into-base left.overlay").failed(1, &["the base image has changed"]);
    assert!(is_expected(&scratch, "middle.overlay"));
    scratch.run("disk info other.overlay").failed(1, &["the base image has changed"]);
    let kept = fs::read(scratch.path("other.overlay")).expect("read");
    scratch.run("disk discard other.overlay").failed(1, &["would be lost", "--force"]);
    assert!(fs::read(scratch.path("other.overlay")).expect("read") == kept, "nothing was discarded");
    let discarded = scratch.run("disk discard --force other.overlay").succeeded();
    discarded.says(&["other.overlay is reset to its base: "]);
    assert!(is_expected(&scratch, "other.overlay"), "it begins anew as its base is now");
    qemu_io(&scratch, "middle.overlay", &["write -P 9 0 4k"]);
    scratch.run("disk discard -f middle.overlay").succeeded();
    assert!(
        fs::read_dir(scratch.path(""))
            .expect("there")
            .all(|entry| { !entry.expect("read").file_name().to_string_lossy().contains("part") })
    );
    scratch.run("disk convert middle.overlay found.img --force").succeeded();
    assert!(is_same(&scratch, "found.img", "golden.img"));
}

#[test]
fn busy_or_foreign_overlays_are_not_merged() {
    let scratch = with_chain();
    scratch.all_fail(&[
        ("disk merge below.overlay", 1, &["its base is not an overlay", "tombolo disk convert"]),
        ("disk merge golden.img", 1, &["it is not an overlay"]),
        ("disk discard golden.img", 1, &["it is not an overlay"]),
    ]);
    let server = scratch.serve("disk above.overlay --nbd ./it.nbd");
    scratch.all_fail(&[
        ("disk merge above.overlay", 1, &["above.overlay is in use"]),
        ("disk discard --force above.overlay", 1, &["above.overlay is in use"]),
        ("disk discard below.overlay", 1, &["below.overlay is in use"]),
        ("disk merge --into-base middle.overlay", 1, &["middle.overlay is in use"]),
    ]);
    // A read-only overlay may be replaced under its reader, who continues with the old one.
    scratch.run("disk merge middle.overlay").succeeded();
    server.stop();
    assert!(is_expected(&scratch, "above.overlay"));
    // A redo log that was copied and changed, or refers to itself.
    fs::copy(scratch.path("below.overlay"), scratch.path("copy.overlay")).expect("copy");
    fs::rename(scratch.path("middle.overlay"), scratch.path("below.overlay")).expect("rename");
    fs::rename(scratch.path("copy.overlay"), scratch.path("middle.overlay")).expect("rename");
    scratch.run("disk merge above.overlay").failed(1, &["the base image has changed"]);
    let said = ["more than 16 overlays"];
    let round = "--base above.overlay ".repeat(17);
    scratch.run(format!("disk merge above.overlay {round}")).failed(1, &said);
    assert!(scratch.path("above.overlay").exists() && scratch.path("below.overlay").exists());
}
