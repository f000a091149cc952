//! Random sequences of operations by several users on the reference model in memory and on a directory of the
//! host. Results, attributes (except times and numbers), listings and contents must agree after every step.
//!
//! A failure is shrunk and printed with its seed; `TOMBOLO_SEED=… cargo test -p tombolo-conformance --test it
//! model` runs it again. `TOMBOLO_CASES` sets how many sequences are tried.

mod action;
mod machine;
mod restarts;
mod vector;

use std::sync::Arc;

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use tombolo_back_local_dir::{LocalDir, Options};
use tombolo_back_memory::Memory;
use tombolo_core::fs::Export;

use machine::Machine;

const CASES: u32 = 200;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

/// Creates a runner and prints its seed.
fn runner(cases: u32) -> TestRunner {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock");
    let seed = number("TOMBOLO_SEED").unwrap_or(now.subsec_nanos().into());
    let cases = number("TOMBOLO_CASES").map_or(cases, |cases| cases as u32);
    eprintln!("TOMBOLO_SEED={seed} TOMBOLO_CASES={cases}");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

fn memory() -> Arc<dyn Export> {
    Arc::new(Memory::default())
}

fn directory(path: &std::path::Path) -> Arc<dyn Export> {
    Arc::new(LocalDir::open(path, Options::default()).expect("the export"))
}

/// Creates a scratch directory that every user may enter.
fn scratch() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::Permissions::from_mode(0o755);
    tempfile::Builder::new().permissions(mode).tempdir().expect("a scratch directory")
}

#[test]
fn a_directory_of_the_host_behaves_like_the_model() {
    let outcome = runner(CASES).run(&action::sequences(), |actions| {
        let scratch = scratch();
        let (mut model, mut real) = (Machine::new(&*memory()), Machine::new(&*directory(scratch.path())));
        for (step, action) in actions.iter().enumerate() {
            if !model.applies(action) {
                continue;
            }
            let (expected, got) = (model.perform(action), real.perform(action));
            if expected != got {
                let text = format!("step {step}, {action:?}:\n  model: {expected}\n  directory: {got}");
                return Err(TestCaseError::fail(text));
            }
        }
        let (expected, got) = (model.whole_tree(), real.whole_tree());
        if expected != got {
            return Err(TestCaseError::fail(format!("the trees differ:\n{expected:#?}\n{got:#?}")));
        }
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

#[test]
fn a_file_behaves_like_a_vector() {
    let scratch = scratch();
    for export in [memory(), directory(scratch.path())] {
        let outcome = runner(CASES).run(&vector::sequences(), |edits| vector::check(&*export, &edits));
        if let Err(failure) = outcome {
            panic!("{failure}");
        }
    }
}
