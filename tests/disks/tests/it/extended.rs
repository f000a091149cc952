//! Extended headers of NBD with a foreign client: QEMU supports them from 8.2 on. `tests/disks/setup` unpacks
//! one.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use crate::common::Bed;

/// Returns a tool's output, and its trace of NBD.
fn traced(tools: &OsString, program: &str, arguments: &[&str]) -> (String, String) {
    let mut command = Command::new(Path::new(tools).join(program));
    let output = command.args(["--trace", "nbd_*"]).args(arguments).output().expect(program);
    let [said, trace] = [output.stdout, output.stderr].map(|out| String::from_utf8_lossy(&out).into_owned());
    assert!(output.status.success(), "{program} {arguments:?}: {said}{trace}");
    (said, trace)
}

/// Returns the directory of qemu-img and qemu-io of version 10.
fn tools() -> Option<OsString> {
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/qemu-10/usr/bin");
    let said = std::env::var_os("TOMBOLO_QEMU_10").filter(|tools| !tools.is_empty());
    let tools = said.or_else(|| unpacked.exists().then(|| unpacked.into_os_string()));
    if tools.is_none() {
        tombolo_skip::skip!(
            "TOMBOLO_QEMU_10 does not say where qemu-img and qemu-io of version 10 are (tests/disks/setup)"
        );
    }
    tools
}

#[test]
fn qemu_10_uses_extended_headers_for_extents_and_writes() {
    let Some(tools) = tools() else { return };
    const TIB: u64 = 1 << 40;
    let bed = Bed::new();
    let image = File::options().write(true).open(bed.image()).unwrap();
    image.set_len(8 * TIB).unwrap();
    image.write_all_at(&[7; 4096], 6 * TIB).unwrap();
    let _server = bed.serve(bed.opened());
    let url = format!("nbd+unix:///disk?socket={}", bed.socket().display());

    let (map, trace) = traced(&tools, "qemu-img", &["map", "--output=json", "-f", "raw", &url]);
    let extent = |start: u64, len: u64, is_data: bool| {
        let wanted = format!("\"start\": {start}, \"length\": {len}, ");
        let kind = format!("\"zero\": {}, \"data\": {is_data}", !is_data);
        assert!(
            map.lines().any(|line| line.contains(&wanted) && line.contains(&kind)),
            "{wanted}{kind}: {map}"
        );
    };
    extent(0, 6 * TIB, false);
    extent(6 * TIB, 4096, true);
    extent(6 * TIB + 4096, 2 * TIB - 4096, false);
    for part in [
        "reply 11 (extended headers), type 1 (ack)",
        &format!(".from = 0, .len = {}, ", 8 * TIB),
        "block status (64-bit)",
    ] {
        assert!(trace.contains(part), "no {part} in {trace}");
    }

    let steps = [
        "write -P 8 7T 64k",
        "write -f -P 9 7696581459968 4k",
        "write -z -u 7696581427200 16k",
        "read -P 8 7T 32k",
        "read -P 0 7696581427200 16k",
        "read -P 9 7696581459968 4k",
        "read -P 7 6T 4k",
        "flush",
    ];
    let steps: Vec<&str> = steps.iter().flat_map(|step| ["-c", step]).collect();
    let (_, trace) = traced(&tools, "qemu-io", &[&["-f", "raw"], &steps[..], &[&url]].concat());
    assert!(trace.contains("reply 11 (extended headers), type 1 (ack)"), "{trace}");
    let mut written = [0; 4096];
    File::open(bed.image()).unwrap().read_exact_at(&mut written, 7 * TIB).unwrap();
    assert_eq!(written, [8; 4096]);
}
