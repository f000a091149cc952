//! `tombolo disk convert`, compared with qemu-img.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use crate::common::{Ran, Scratch, contains, numbers, overwrite, signal, until};
use crate::disk::{qemu_img, run};

const MIB: u64 = 1 << 20;
const DISK_BYTES: u64 = 16 * MIB;

/// Creates an image with data, holes and written zeroes.
fn with_source() -> Scratch {
    let scratch = Scratch::new();
    let file = scratch.sparse("from.img", DISK_BYTES);
    file.write_all_at(numbers().as_bytes(), MIB).expect("write");
    file.write_all_at(&vec![0; MIB as usize], 9 * MIB).expect("write");
    file.write_all_at(&[7; 70_000], DISK_BYTES - 70_000).expect("write");
    scratch
}

#[track_caller]
fn compare(scratch: &Scratch, format: &str, other: &str) {
    let names = format!("{} {}", scratch.text("from.img"), scratch.text(other));
    assert!(qemu_img(format!("compare -f raw -F {format} {names}")).contains("identical"));
}

fn room_of(path: &Path) -> u64 {
    fs::metadata(path).expect("stat").blocks() * 512
}

/// Returns the amount of data according to QEMU.
fn data_of(path: &Path, format: &str) -> u64 {
    let map = qemu_img(format!("map --output=json -f {format} {}", path.to_str().expect("text")));
    let map: serde_json::Value = serde_json::from_str(&map).expect("JSON");
    let extents = map.as_array().expect("a list").iter();
    let data = extents.filter(|extent| extent["data"] == true && extent["zero"] == false);
    data.map(|extent| extent["length"].as_u64().expect("a number")).sum()
}

#[test]
fn convert_supports_all_kinds_and_stays_sparse() {
    let scratch = with_source();
    let (files, url) = scratch.serve_nfs();
    let nfs = format!("{url}/vm.img");
    let convert = |from: &str, to: &str, more: &str| {
        let ran = scratch.run(format!("disk convert {from} {to} --verify {more}")).succeeded();
        ran.says(&["; verified"]);
    };
    convert("from.img", "one.qcow2", "");
    compare(&scratch, "qcow2", "one.qcow2");
    qemu_img(format!("check {}", scratch.text("one.qcow2")));
    convert("one.qcow2", &nfs, "");
    compare(&scratch, "raw", "tree/vm.img");
    convert(&nfs, "dir:two.img", "");
    compare(&scratch, "raw", "two.img");
    // An NBD disk, whose length the server fixes, is overwritten.
    fs::write(scratch.path("old.img"), vec![0xaa; DISK_BYTES as usize]).expect("write");
    let server = scratch.serve("disk old.img --nbd ./old.nbd");
    let nbd = format!("nbd+unix:///old.img?socket={}", scratch.text("old.nbd"));
    convert("dir:two.img", &nbd, "--force");
    compare(&scratch, "raw", "old.img");
    convert(&nbd, "three.img", "");
    compare(&scratch, "raw", "three.img");
    server.stop();
    for name in ["tree/vm.img", "two.img", "three.img", "old.img", "one.qcow2"] {
        assert!(room_of(&scratch.path(name)) < 5 * MIB, "{name}");
    }
    // QEMU finds the same data in all of them, in units of 4 KiB or clusters.
    let data_bytes = numbers().len() as u64 + 70_000;
    for (name, format) in [("from.img", "raw"), ("two.img", "raw"), ("one.qcow2", "qcow2")] {
        let found = data_of(&scratch.path(name), format);
        let written_zeroes = if name == "from.img" { MIB } else { 0 };
        let spare = found.checked_sub(data_bytes + written_zeroes);
        assert!(spare.is_some_and(|spare| spare < 4 << 16), "{name}: {found}");
    }
    convert("three.img", "one.qcow2", "--force --format raw");
    compare(&scratch, "raw", "one.qcow2");
    convert("two.img", &nfs, "--force");
    compare(&scratch, "raw", "tree/vm.img");
    files.stop();
}

#[test]
fn partial_last_sector_is_consistent_everywhere() {
    let scratch = Scratch::new();
    let (files, url) = scratch.serve_nfs();
    let bytes = [vec![1; 4096], b"TAIL".to_vec()].concat();
    let padded = [bytes.clone(), vec![0; 508]].concat();
    for name in ["base.img", "tree/far.img"] {
        fs::write(scratch.path(name), &bytes).expect("write");
    }
    scratch.run("disk create over.overlay --base base.img").succeeded();
    qemu_img(format!("create -q -f qcow2 -b base.img -F raw {}", scratch.text("over.qcow2")));
    let server = scratch.serve("disk base.img --read-only --nbd ./base.nbd");
    let nbd = format!("nbd+unix:///base.img?socket={}", scratch.text("base.nbd"));
    let far = format!("{url}/far.img");
    for from in ["base.img", "over.overlay", "over.qcow2", "dir:base.img", &nbd, &far] {
        let info = scratch.run(format!("disk info {from} --json")).succeeded().json();
        assert_eq!(info["size_bytes"].as_u64(), Some(4608), "{from}: {info}");
        for below in info["images"].as_array().into_iter().flatten() {
            assert_eq!(below["size_bytes"].as_u64(), Some(4608), "{from}: {info}");
        }
        scratch.run(format!("disk convert {from} copy.img --verify --force")).succeeded();
        assert!(fs::read(scratch.path("copy.img")).expect("read") == padded, "{from}");
    }
    server.stop();
    for name in ["base.img", "tree/far.img"] {
        assert!(fs::read(scratch.path(name)).expect("read") == bytes, "{name}: looking changes nothing");
    }
    // Writes are readable.
    let written = [vec![1; 4096], vec![7; 512]].concat();
    for (disk, name) in [("base.img", "base.img"), (&far, "tree/far.img")] {
        let server = scratch.serve(format!("disk {disk} --name d --nbd ./base.nbd"));
        let url = format!("nbd+unix:///d?socket={}", scratch.text("base.nbd"));
        run("qemu-io", &["-f", "raw", "-c", "write -P 7 4096 512", "-c", "flush", &url]);
        server.stop();
        assert!(fs::read(scratch.path(name)).expect("read") == written, "{name}");
    }
    files.stop();
}

#[test]
fn convert_refuses_existing_or_busy_target() {
    let scratch = with_source();
    fs::write(scratch.path("there.img"), [1; 512]).expect("write");
    fs::set_permissions(scratch.path("there.img"), fs::Permissions::from_mode(0o640)).expect("chmod");
    let server = scratch.serve("disk there.img --nbd ./there.nbd");
    let nbd = format!("disk convert from.img nbd+unix:///there.img?socket={} -f", scratch.text("there.nbd"));
    scratch.all_fail(&[
        ("disk convert from.img there.img", 1, &["already exists", "--force replaces"]),
        ("disk convert from.img there.img --resume", 1, &["already exists", "--force replaces"]),
        ("disk convert from.img dir:there.img", 1, &["already exists", "--force overwrites"]),
        ("disk convert from.img there.img --force", 1, &["there.img is in use"]),
        ("disk convert there.img new.img", 1, &["there.img is in use"]),
        (&nbd, 1, &["512 bytes", "enlarge it first"]),
        ("disk convert from.img ./from.img --force", 2, &["into itself"]),
        ("disk convert from.img new.img --format overlay", 2, &["invalid value 'overlay'", "raw, qcow2"]),
        ("disk convert missing.img new.img", 1, &["missing.img"]),
        ("disk convert from.img missing/new.img", 1, &["No such file"]),
    ]);
    server.stop();
    assert_eq!(fs::read(scratch.path("there.img")).expect("read"), [1; 512]);
    let replaced = scratch.run("disk convert from.img there.img --force --json").succeeded();
    let done = replaced.json();
    assert_eq!(done["size_bytes"].as_u64(), Some(DISK_BYTES));
    let both = ["data_bytes", "zero_bytes"].map(|name| done[name].as_u64().expect("a number"));
    assert_eq!(both.iter().sum::<u64>(), DISK_BYTES);
    compare(&scratch, "raw", "there.img");
    let mode = fs::metadata(scratch.path("there.img")).expect("stat").permissions().mode();
    assert_eq!(mode & 0o777, 0o640, "as it was");
}

#[test]
fn convert_resumes_after_no_space_unless_source_changed() {
    let scratch = with_source();
    let limited = |blocks: &str, to: &str| {
        let mut command = scratch.program("sh", &["-c"]);
        let program = env!("CARGO_BIN_EXE_tombolo");
        // The file size limit makes writes fail instead of killing the program.
        command.arg(format!(
            "trap '' XFSZ; ulimit -f {blocks}; exec {program} disk convert from.img {to} --resume -q"
        ));
        Ran::new(command)
    };
    let broken = limited("5000", "to.qcow2");
    assert_eq!(broken.code, Some(1), "{broken:?}");
    contains(&broken.err, &["cannot write at offset", "to.qcow2", "--resume"]);
    assert!(!scratch.path("to.qcow2").exists());
    let resumed = scratch.run("disk convert from.img to.qcow2 --resume --json").succeeded();
    let done = resumed.json();
    // Several pieces are in flight, so the first one without space varies.
    assert!(done["resumed_bytes"].as_u64() > Some(0), "{}", resumed.out);
    compare(&scratch, "qcow2", "to.qcow2");

    fs::remove_file(scratch.path("to.qcow2")).expect("remove");
    assert_eq!(limited("5000", "to.qcow2").code, Some(1));
    overwrite(scratch.path("from.img"), MIB, b"news");
    let starts_over = |to: &str, why: &str| {
        let anew = scratch.run(format!("disk convert from.img {to} --resume"));
        assert_eq!(anew.code, Some(0), "{anew:?}");
        contains(&anew.err, &[why, "starting over"]);
    };
    starts_over("to.qcow2", "changed");
    compare(&scratch, "qcow2", "to.qcow2");
    assert!(!scratch.path(".to.qcow2.tombolo-part").exists());

    // A partial qcow2 image cannot be continued as a raw one.
    assert_eq!(limited("5000", "other.qcow2").code, Some(1));
    starts_over("other.qcow2 --format raw", "another format");
    compare(&scratch, "raw", "other.qcow2");

    // Interrupted when the file had been created but was still empty.
    assert_eq!(limited("8", "dir:to.img").code, Some(1));
    assert_eq!(fs::metadata(scratch.path("to.img")).expect("stat").len(), 0);
    scratch.run("disk convert from.img dir:to.img --resume").succeeded();
    compare(&scratch, "raw", "to.img");
}

/// Interrupts a conversion while the server of its source does not respond.
#[test]
fn interrupted_conversion_leaves_only_resumable_files() {
    let scratch = with_source();
    let server = scratch.serve("disk from.img --nbd ./from.nbd");
    let url = format!("nbd+unix:///from.img?socket={}", scratch.text("from.nbd"));
    let before = scratch.listing();
    server.signal("STOP");
    let mut command = scratch.tombolo(format!("disk convert {url} to.img"));
    let convert = command.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start");
    until("it watches for signals", || watches_for_interrupts(convert.id()));
    signal(convert.id(), "INT");
    server.signal("CONT");
    let ended = convert.wait_with_output().expect("wait");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(130), "{said}");
    assert!(said.contains("SIGINT: finishing outstanding requests") && said.contains("--resume"), "{said}");
    assert_eq!(scratch.listing(), before);
    server.stop();
}

fn watches_for_interrupts(pid: u32) -> bool {
    const INTERRUPT: u64 = 1 << (2 - 1);
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    let set = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
        u64::from_str_radix(line.trim(), 16).expect("a number")
    };
    (set("SigCgt:") | set("SigBlk:")) & INTERRUPT != 0
}

/// Kills conversions at many moments; the repeated command continues each time, and the final result is
/// correct.
#[test]
fn repeatedly_killed_conversion_completes_correctly() {
    let scratch = with_source();
    let (files, url) = scratch.serve_nfs();
    let nfs = format!("{url}/vm.img");
    for (to, copy, format) in
        [("to.qcow2", "to.qcow2", "qcow2"), ("to.img", "to.img", "raw"), (&nfs, "tree/vm.img", "raw")]
    {
        let words = format!("disk convert from.img {to} --resume");
        for time_ms in [5, 20, 40, 60, 80, 110] {
            let mut child =
                scratch.tombolo(&words).stderr(Stdio::null()).stdout(Stdio::null()).spawn().expect("start");
            thread::sleep(Duration::from_millis(time_ms));
            child.kill().expect("kill");
            if child.wait().expect("wait").success() {
                break;
            }
        }
        // A conversion killed just after its end leaves nothing to continue.
        let last = scratch.run(&words);
        assert!(last.code == Some(0) || last.err.contains("already exists"), "{last:?}");
        compare(&scratch, format, copy);
    }
    files.stop();
}
