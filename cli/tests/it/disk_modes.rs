//! File modes created by the disk commands.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use crate::common::{Ran, Scratch};
use crate::disk::qemu_img;

#[test]
fn a_new_disk_is_no_wider_than_its_source() {
    let scratch = Scratch::new();
    let (files, url) = scratch.serve_nfs();
    let mode = |name: &str| fs::metadata(scratch.path(name)).expect("stat").mode() & 0o7777;
    for umask in [0o000, 0o022, 0o077] {
        let tombolo = |line: &str| {
            let line = format!("umask {umask:03o}; exec {} {line}", env!("CARGO_BIN_EXE_tombolo"));
            Ran::new(scratch.program("sh", &["-c", &line])).succeeded();
        };
        for source in [0o600, 0o640, 0o644, 0o664, 0o444] {
            let base = scratch.path("tree/base.img");
            fs::write(&base, [7; 8192]).expect("write");
            fs::set_permissions(&base, fs::Permissions::from_mode(source)).expect("chmod");
            let over = scratch.text("tree/over.qcow2");
            qemu_img(format!("create -q -f qcow2 -b base.img -F raw {over}"));
            fs::set_permissions(&over, fs::Permissions::from_mode(0o666)).expect("chmod");
            tombolo("disk create tree/one.overlay --base tree/base.img");
            tombolo(&format!("disk create far.overlay --base {url}/base.img"));
            for (from, to) in [
                ("tree/base.img", "raw.img".to_owned()),
                ("tree/base.img", "new.qcow2".to_owned()),
                ("tree/over.qcow2", "of-chain.img".to_owned()),
                ("tree/one.overlay", "of-overlay.img".to_owned()),
                ("tree/base.img", "dir:of-dir.img".to_owned()),
                ("tree/base.img", format!("{url}/of-nfs.img")),
                (&format!("{url}/base.img"), "from-nfs.img".to_owned()),
            ] {
                tombolo(&format!("disk convert {from} {to}"));
            }
            let wanted = source & !umask | 0o600;
            for name in [
                "tree/one.overlay",
                "far.overlay",
                "raw.img",
                "new.qcow2",
                "of-chain.img",
                "of-overlay.img",
                "of-dir.img",
                "tree/of-nfs.img",
                "from-nfs.img",
            ] {
                assert_eq!(mode(name), wanted, "{name} of {source:o} with umask {umask:o}");
                fs::remove_file(scratch.path(name)).expect("remove");
            }
            fs::remove_file(&over).expect("remove");
            fs::remove_file(&base).expect("remove");
        }
    }
    files.stop();
}
