//! Runs each fuzz target on its corpus: inputs that covered new code in its parser.

use std::path::Path;

use tombolo_fuzz_targets as targets;

fn replay(target: &str, run: fn(&[u8])) {
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target).with_extension("hex");
    let corpus = std::fs::read_to_string(&file).expect("a corpus");
    assert!(!corpus.is_empty(), "no inputs in {}", file.display());
    for line in corpus.lines() {
        eprintln!("{line}");
        run(&bytes(line));
    }
}

fn bytes(line: &str) -> Vec<u8> {
    let digit = |digit: u8| (digit as char).to_digit(16).expect("a hexadecimal digit") as u8;
    line.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

#[test]
fn fuse_decode() {
    replay("fuse_decode", targets::fuse_decode::run);
}

#[test]
fn image_sidecar() {
    replay("image_sidecar", targets::image_sidecar::run);
}

#[test]
fn keeper() {
    replay("keeper", targets::keeper::run);
}

#[test]
fn link_hello() {
    replay("link_hello", targets::link_hello::run);
}

#[test]
fn mount3() {
    replay("mount3", targets::mount3::run);
}

#[test]
fn nbd() {
    replay("nbd", targets::nbd::run);
}

#[test]
fn nfs3_args() {
    replay("nfs3_args", targets::nfs3_args::run);
}

#[test]
fn nfs3_results() {
    replay("nfs3_results", targets::nfs3_results::run);
}

#[test]
fn nfs_client() {
    replay("nfs_client", targets::nfs_client::run);
}

#[test]
fn nfs_side() {
    replay("nfs_side", targets::nfs_side::run);
}

#[test]
fn qcow2() {
    replay("qcow2", targets::qcow2::run);
}

#[test]
fn redo_log() {
    replay("redo_log", targets::redo_log::run);
}

#[test]
fn rpc_link() {
    replay("rpc_link", targets::rpc_link::run);
}

#[test]
fn rpc_record() {
    replay("rpc_record", targets::rpc_record::run);
}

#[test]
fn virtio_blk() {
    replay("virtio_blk", targets::virtio_blk::run);
}

#[test]
fn virtqueue_walk() {
    replay("virtqueue_walk", targets::virtqueue_walk::run);
}

#[test]
fn vrpc_reply() {
    replay("vrpc_reply", targets::vrpc_reply::run);
}

#[test]
fn vrpc_request() {
    replay("vrpc_request", targets::vrpc_request::run);
}

/// The programs are built only by `make lint` and `make test-long`: each must consist of this line.
#[test]
fn each_fuzz_program_runs_its_target() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let manifest = std::fs::read_to_string(fuzz.join("Cargo.toml")).expect("a manifest");
    let mut programs = 0;
    for file in std::fs::read_dir(fuzz.join("targets")).expect("targets") {
        let file = file.expect("a file").path();
        let name = file.file_stem().expect("a name").to_string_lossy().into_owned();
        let program = std::fs::read_to_string(&file).expect("a program");
        let run = format!("tombolo_fuzz_targets::{name}::run(bytes)");
        assert!(program.contains(&run), "{} does not run its target", file.display());
        assert!(manifest.contains(&format!("path = \"targets/{name}.rs\"")), "{name} is not built");
        programs += 1;
    }
    assert_eq!(programs, manifest.matches("[[bin]]").count());
}
