//! Random sequences of operations by several users on the reference model in memory and on a directory of the
//! host. Results, attributes (except times and numbers), listings and contents must agree after every step.
//!
//! A failure is reduced and printed with its seed; `TOMBOLO_SEED=… cargo test -p tombolo-conformance --test
//! it model` runs it again. `TOMBOLO_CASES` sets how many sequences are tried.

mod restarts;
mod vector;

use tombolo_test_support::history::{Machine, Mix, Step, run_sequences, tree};

use crate::common::{directory, memory, scratch};

const CASES: u64 = 200;

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
        let mut model = Machine::new(&*memory());
        let mut real = Machine::new(&*directory(scratch.path(), false));
        for (at, step) in steps.iter().enumerate() {
            compare(&mut model, &mut real, at, step)?;
        }
        compare_trees(&model, &real)
    });
}

#[test]
fn a_file_behaves_like_a_vector() {
    let scratch = scratch();
    for export in [memory(), directory(scratch.path(), false)] {
        run_sequences(CASES, vector::sample, |edits| vector::check(&*export, edits));
    }
}
