//! Random operations on files, over links that are cut now and then, beside a memory without links.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use tombolo_back_memory::Memory;
use tombolo_core::fs::{Exclusive, Export};
use tombolo_layer_basic::delay;
use tombolo_test_support::history::{Action, At, Machine, Step, tree};
use tombolo_test_support::{READ_WRITE, Session};
use tombolo_vrpc_tests::site::{Plan, Site, client};

const FILES: [&str; 4] = ["file0", "file1", "file2", "file3"];
const STEPS: usize = 1500;
const SIZE_MAX: u64 = 100 << 10;

/// Samples operations on one file: its node is behind the root, and its opening has the same index.
fn sample(random: &mut Rng) -> Vec<Action> {
    let file = random.usize(..FILES.len());
    match random.u8(..16) {
        0..8 => {
            let len = [4096, 10, 600, 5000, 64 << 10, 70 << 10][random.usize(..6)];
            let offset = random.u64(..SIZE_MAX - len as u64);
            vec![Action::Write(file, offset, len, (false, false), random.u64(..))]
        }
        8..11 => vec![Action::Read(file, 0, SIZE_MAX as usize)],
        11 => vec![Action::Getattr(1 + file)],
        12 => vec![Action::OpenResize(file, random.u64(..SIZE_MAX))],
        13 => vec![Action::Fsync(file)],
        14 => vec![Action::Flush(file, 1)],
        _ => vec![Action::Release(file, false), Action::Open(1 + file, READ_WRITE)],
    }
}

fn run(export: Arc<dyn Export>, cut_every: u64, seed: u64) {
    let site = Site::serving(export, Plan { cut_every, ..Plan::default() });
    let export = site.export().with_writes_behind(true);
    let fs = export.attach_session(&client()).expect("a session");
    let mut model = Machine::of(Session::attach(&Memory::default()));
    let mut real = Machine::of(Session::of(fs));
    real.is_lazy = true;
    let mut random = Rng::with_seed(seed);
    let created = FILES.map(|name| Action::Create(At { dir: 0, name }, 0o600, READ_WRITE, Exclusive::No));
    let actions = std::iter::repeat_with(|| sample(&mut random)).take(STEPS).flatten();
    for (at, action) in created.into_iter().chain(actions).enumerate() {
        let step = Step { action, user: 0 };
        let (expected, got) = (model.perform_now(&step), real.perform_now(&step));
        assert!(got == expected && got.is_ok(), "step {at}, {:?}", step.action);
    }
    assert_eq!(tree(&real.session, false, None), tree(&model.session, false, None), "at the end");
    assert!(cut_every == 0 || site.cuts() > 0);
}

#[test]
fn files_have_the_bytes_written() {
    run(Arc::new(Memory::default()), 0, 0x9e37_79b9);
}

#[test]
fn files_have_the_bytes_written_over_lost_links() {
    for (cut_every, seed) in [(61, 1), (64, 2), (103, 3)] {
        run(Arc::new(Memory::default()), cut_every, seed);
    }
}

#[test]
fn files_of_a_slow_server_have_the_bytes_written() {
    let delayed = delay::over(Arc::new(Memory::default()), Duration::from_micros(20)).expect("a timer");
    run(Arc::new(delayed), 97, 4);
}
