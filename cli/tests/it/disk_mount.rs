//! Disks presented as local files.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::{Scratch, overwrite};

const MIB: u64 = 1 << 20;

fn at(path: &Path, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    File::open(path).expect("open").read_exact_at(&mut bytes, offset).expect("read");
    bytes
}

#[test]
fn disk_file_writes_reach_disk_at_server_end() {
    let scratch = Scratch::new();
    let base = scratch.path("base.img");
    scratch.sparse("base.img", 16 * MIB);
    overwrite(&base, MIB, b"base");
    scratch.run("disk create vm.overlay --base base.img").succeeded();
    let server = scratch.serve("disk vm.overlay --name memory --mount mnt --sandbox strict");
    let file = scratch.path("mnt/memory");
    server.says(&[format!("ready file {}\n", file.display())]);
    assert_eq!(file.metadata().expect("stat").len(), 16 * MIB);
    assert_eq!(at(&file, MIB, 4), b"base");
    // Not in whole blocks, and without a sync.
    let open = File::options().write(true).open(&file).expect("open");
    open.write_all_at(b"written", 2 * MIB + 1001).expect("write");
    open.write_all_at(&[7; 3000], 16 * MIB - 3000).expect("write");
    open.write_at(b"x", 16 * MIB).expect_err("behind the end");
    open.set_len(MIB).expect_err("it is as long as the disk");
    drop(open);
    // The server has exclusive use of the disk.
    scratch.run("disk vm.overlay --nbd ./nbd").failed(1, &["in use"]);
    server.stop();
    assert!(!file.exists(), "it is not mounted any more");
    scratch.run("disk convert vm.overlay whole.img").succeeded();
    let whole = scratch.path("whole.img");
    assert_eq!(at(&whole, MIB, 4), b"base");
    assert_eq!(at(&whole, 2 * MIB + 1000, 9), b"\0written\0");
    assert_eq!(at(&whole, 16 * MIB - 3001, 3001), [&[0][..], &[7; 3000]].concat());
    let unchanged = [&b"base"[..], &[0; 8]].concat();
    assert!(at(&base, MIB, 12) == unchanged && at(&base, 16 * MIB - 1, 1) == [0], "the base is as it was");
}

#[test]
fn read_only_disk_file_refuses_writes_and_invalid_mounts() {
    let scratch = Scratch::new();
    fs::write(scratch.path("disk.img"), [1; 4096]).expect("write");
    let server = scratch.serve("disk disk.img --read-only --mount mnt");
    let file = scratch.path("mnt/disk.img");
    assert_eq!(at(&file, 0, 4096), [1; 4096]);
    File::options().write(true).open(&file).expect_err("read-only");
    scratch.run("disk disk.img --read-only --mount mnt").failed(1, &["busy", "tombolo umount"]);
    server.stop();
    scratch.run("disk disk.img --mount nowhere").failed(1, &["nowhere"]);
    scratch.run("disk disk.img --mount mnt --keep").failed(2, &["--keep", "--mount"]);
}
