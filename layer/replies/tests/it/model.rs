//! Equivalence of random operations with and without random duplicates.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use tombolo_core::fs::{Export, OpenFlags};
use tombolo_layer_basic::delay;
use tombolo_layer_replies::Options;
use tombolo_test_support::Session;
use tombolo_test_support::history::{Action, Machine, Step, run_sequences, tree};

use crate::fixture::{Bottom, Fixture, change, fresh_key};

/// A request: number of concurrent duplicates, and earlier requests repeated after it.
#[derive(Clone, Debug)]
struct Request {
    /// The change; an opening stands for an append through it.
    step: Step,
    at_once: usize,
    replays: Vec<usize>,
}

/// Samples a sequence of fewer than `most` requests.
fn sample(random: &mut Rng, most: usize) -> Vec<Request> {
    let request = |random: &mut Rng| {
        let append = OpenFlags::WRITE | OpenFlags::APPEND;
        let action = match random.u8(..9) {
            0 => Action::Open(random.usize(..12), append),
            _ => change(random),
        };
        let replays = (0..random.usize(..3)).map(|_| random.usize(..40)).collect();
        Request { step: Step { action, user: 0 }, at_once: random.usize(1..4), replays }
    };
    (0..random.usize(1..most)).map(|_| request(random)).collect()
}

/// Returns `true` if a repeated reply may be `Stale`, because it names a node.
fn names_a_node(action: &Action) -> bool {
    !matches!(action, Action::Unlink(_) | Action::Rmdir(_) | Action::Rename(..))
}

/// Creates a machine that retains all nodes, as servers do.
fn machine(session: Session) -> Machine {
    let mut machine = Machine::of(session);
    machine.is_lazy = true;
    machine
}

fn check(bottom: Bottom, time: Duration, requests: &[Request]) -> Result<(), String> {
    let fixture = Fixture::with(bottom, &Options::default(), |export| match time.is_zero() {
        true => export,
        false => Arc::new(delay::over(export, time).expect("a timer")) as Arc<dyn Export>,
    });
    let (reference, _scratch) = bottom.export();
    let mut model = machine(Session::attach(&*reference));
    let mut real = machine(fixture.clone());
    let mut sent: Vec<(Machine, Step, Result<(), String>)> = Vec::new();
    for request in requests {
        if !model.applies(&request.step) {
            continue;
        }
        let mut step = request.step.clone();
        if matches!(step.action, Action::Open(..)) {
            let opened = (real.perform_now(&step), model.perform_now(&step));
            assert_eq!(opened.0, opened.1, "{step:?}");
            if opened.0.is_err() {
                continue;
            }
            step.action = Action::Write(model.openings() - 1, 0, 7, (false, false), 1);
        }
        let expected = model.perform_now(&step);
        real.session.cx.key = Some(fresh_key());
        let copies = (0..request.at_once).map(|_| (real.clone(), step.clone()));
        let threads: Vec<_> = copies
            .map(|(mut copy, step)| std::thread::spawn(move || (copy.perform_now(&step), copy)))
            .collect();
        sent.push((real.clone(), step.clone(), expected.clone().map(drop)));
        for thread in threads {
            let came;
            (came, real) = thread.join().expect("no panic");
            assert_eq!(came, expected, "{step:?}");
        }
        real.session.cx.key = None;
        for replay in &request.replays {
            let (before, step, expected) = &sent[replay % sent.len()];
            let again = before.clone().perform_now(step).map(drop);
            let is_stale = expected.is_ok() && names_a_node(&step.action) && again == Err("Stale".into());
            assert!(again == *expected || is_stale, "{step:?} came to {expected:?}, and again to {again:?}");
        }
        let (expected, got) = (tree(&model.session, false, None), tree(&real.session, false, None));
        assert_eq!(got, expected, "after {step:?}");
    }
    Ok(())
}

#[test]
fn duplicates_change_nothing_in_memory() {
    run_sequences(200, |random| sample(random, 40), |steps| check(Bottom::Memory, Duration::ZERO, steps));
}

#[test]
fn duplicates_change_nothing_where_answers_come_later() {
    let time = Duration::from_micros(200);
    run_sequences(30, |random| sample(random, 20), |steps| check(Bottom::Memory, time, steps));
}

#[test]
fn duplicates_change_nothing_in_a_directory() {
    run_sequences(30, |random| sample(random, 40), |steps| check(Bottom::Tmpfs, Duration::ZERO, steps));
}
