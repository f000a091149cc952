//! Random sequences of operations by several users on the reference model in memory and on a directory of the
//! host. Results, attributes (except times and numbers), listings and contents must agree after every step.
//!
//! A failure is reduced and printed with its seed; `TOMBOLO_SEED=… cargo test -p tombolo-conformance --test
//! it model` runs it again. `TOMBOLO_CASES` sets how many sequences are tried.

mod restarts;
mod vector;

use std::sync::Arc;

use tombolo_back_local_dir::{LocalDir, Options};
use tombolo_back_memory::Memory;
use tombolo_core::fs::Export;
use tombolo_test_support::history::{Machine, Mix, Step, run_sequences, tree};

const CASES: u64 = 200;

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

/// Performs a step on both sides, if its result is determined, and compares the results.
fn compare(model: &mut Machine, real: &mut Machine, at: usize, step: &Step) -> Result<(), String> {
    if !model.applies(step) {
        return Ok(());
    }
    let (expected, got) = (model.perform_now(step), real.perform_now(step));
    let told = || format!("step {at}, {step:?}:\n  model: {expected:?}\n  real: {got:?}");
    if expected == got { Ok(()) } else { Err(told()) }
}

/// Compares the trees at the end.
fn compare_trees(model: &Machine, real: &Machine) -> Result<(), String> {
    let (expected, got) = (tree(&model.session, false, None), tree(&real.session, false, None));
    if expected == got { Ok(()) } else { Err(format!("the trees differ:\n{expected:#?}\n{got:#?}")) }
}

#[test]
fn a_directory_of_the_host_behaves_like_the_model() {
    let sample =
        |rng: &mut fastrand::Rng| (0..rng.usize(1..80)).map(|_| Step::sample(rng, &Mix::ALL)).collect();
    run_sequences(CASES, sample, |steps: &[Step]| {
        let scratch = scratch();
        let (mut model, mut real) = (Machine::new(&*memory()), Machine::new(&*directory(scratch.path())));
        for (at, step) in steps.iter().enumerate() {
            compare(&mut model, &mut real, at, step)?;
        }
        compare_trees(&model, &real)
    });
}

#[test]
fn a_file_behaves_like_a_vector() {
    let scratch = scratch();
    for export in [memory(), directory(scratch.path())] {
        run_sequences(CASES, vector::sample, |edits| vector::check(&*export, edits));
    }
}
