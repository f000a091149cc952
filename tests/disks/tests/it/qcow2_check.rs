//! Damage to the tables of qcow2 images, compared with `qemu-img check`.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use tombolo_back_image_file::{Checked, Qcow2Image};

use crate::qcow2::{Images, qemu, text};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Sound,
    Leaks,
    Damaged,
}

fn ours(path: &Path) -> Verdict {
    match Qcow2Image::check(path) {
        Ok(Checked { damages_count: 0, leaked_bytes: Some(0), .. }) => Verdict::Sound,
        Ok(Checked { damages_count: 0, .. }) => Verdict::Leaks,
        Ok(_) | Err(_) => Verdict::Damaged,
    }
}

fn of_qemu(path: &Path) -> Verdict {
    let mut check = Command::new("qemu-img");
    check.args(["check", "-q", "-f", "qcow2", text(path)]).stdout(Stdio::null()).stderr(Stdio::null());
    match check.status().expect("qemu-img").code() {
        Some(0) => Verdict::Sound,
        Some(3) => Verdict::Leaks,
        _ => Verdict::Damaged,
    }
}

/// Creates an image with data, allocated zeroes and compressed data, in small clusters.
fn image(images: &Images, options: &[&str]) -> Vec<u8> {
    let path = images.create("disk.qcow2", options, 1 << 20);
    let steps = [
        "write -P 7 0 40k",
        "write -z 8k 8k",
        "write -c -P 9 512k 4k",
        "write -c -P 8 516k 4k",
        "write -P 6 1020k 4k",
    ];
    let steps: Vec<&str> = steps.iter().flat_map(|step| ["-c", step]).collect();
    qemu("qemu-io", &[&["-f", "qcow2"], &steps[..], &[text(&path)]].concat());
    fs::read(path).expect("read")
}

#[test]
fn damage_to_tables_is_found_where_qemu_finds_it() {
    let images = Images::new();
    let damaged = images.path("damaged.qcow2");
    for (options, step) in [
        (&["-o", "cluster_size=4k"][..], 409),
        (&["-o", "cluster_size=4k,refcount_bits=1"], 1637),
        (&["-o", "cluster_size=4k,refcount_bits=64"], 1637),
        (&["-o", "cluster_size=4k,compat=0.10"], 1637),
    ] {
        let whole = image(&images, options);
        fs::write(&damaged, &whole).expect("write");
        assert_eq!((ours(&damaged), of_qemu(&damaged)), (Verdict::Sound, Verdict::Sound), "{options:?}");
        let tables = 4096..whole.len();
        let entries = tables.step_by(step).map(|at| at - at % 8);
        let mut wrong = Vec::new();
        for (number, entry) in entries.enumerate() {
            let at = entry + number % 8;
            let mut bytes = whole.clone();
            bytes[at] ^= [0x80, 0x01, 0x10, 0x41][number / 8 % 4];
            fs::write(&damaged, &bytes).expect("write");
            let verdicts = (ours(&damaged), of_qemu(&damaged));
            if verdicts.0 != verdicts.1 {
                wrong.push((at, verdicts));
            }
        }
        assert!(wrong.is_empty(), "{options:?}: {wrong:?}");
    }
}
