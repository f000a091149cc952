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

/// Makes a test of each target.
macro_rules! corpora {
    ($($target:ident,)*) => {
        $(
            #[test]
            fn $target() {
                replay(stringify!($target), targets::$target::run);
            }
        )*
    };
}

corpora! {
    fuse_decode,
    image_sidecar,
    keeper,
    link_hello,
    mount3,
    nbd,
    nfs3_args,
    nfs3_results,
    nfs_client,
    nfs_side,
    qcow2,
    redo_log,
    rpc_link,
    rpc_record,
    virtio_blk,
    virtqueue_walk,
    vrpc_reply,
    vrpc_request,
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
