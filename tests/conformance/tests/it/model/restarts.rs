//! Write-back against the reference model, with orderly and sudden restarts in between. After a sudden one,
//! only stable state is left.

use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tombolo_back_memory::Memory;
use tombolo_core::fs::Volume;
use tombolo_layer_cache::store::{OriginIdentity, StoreOptions};
use tombolo_layer_cache::{CacheExport, Contract, Options, over};
use tombolo_layer_write_back::WriteBackExport;

use super::action::{Action, required_and_xattrs};
use super::machine::Machine;
use super::{memory, runner};
use crate::store::opened_store;

const CASES: u32 = 20;

#[derive(Clone, Debug)]
enum Step {
    Act(Action),
    /// Ends the layers in order and reopens their state on the disk.
    Restart,
    /// Makes everything stable and continues from a copy of the files at that time.
    Crash,
}

fn sequences() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![30 => required_and_xattrs().prop_map(Step::Act), 1 => Just(Step::Restart), 2 => Just(Step::Crash)];
    prop::collection::vec(step, 1..100)
}

/// Opens a write-back layer over a cache of `origin`, both with their state in `dir`.
fn opened(origin: &Memory, dir: &Path) -> (WriteBackExport, CacheExport) {
    let identity = OriginIdentity { location: "memory:".into(), volume: Volume::default() };
    let store = opened_store(&dir.join("cache"), &identity, StoreOptions::default());
    let options = Options { contract: Contract::Exclusive, ..Options::default() };
    let cache = over(origin, store, options).expect("a cache");
    // The state must not change while it is copied.
    let never = Duration::from_secs(24 * 60 * 60);
    let kept = tombolo_layer_write_back::Options { idle: never, delay_max: never, ..Default::default() };
    let export = tombolo_layer_write_back::over(&cache, &dir.join("write-back"), kept);
    (export.expect("a journal"), cache)
}

/// Copies files as a crash would leave them. Databases before their logs: entries moved meanwhile are in
/// both.
fn image(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("mkdir");
    let mut files: Vec<_> = std::fs::read_dir(from).expect("list").flatten().collect();
    files.sort_by_key(std::fs::DirEntry::file_name);
    for file in files {
        match file.file_type().expect("a type").is_dir() {
            true => image(&file.path(), &to.join(file.file_name())),
            false => drop(std::fs::copy(file.path(), to.join(file.file_name()))),
        }
    }
}

fn check(steps: &[Step]) -> Result<(), TestCaseError> {
    let dir = tempfile::tempdir().expect("a directory");
    let (model_export, origin) = (memory(), Memory::default());
    let place = |life: usize| dir.path().join(life.to_string());
    let mut life = 0;
    let mut export = opened(&origin, &place(life));
    let (mut model, mut real) = (Machine::new(&*model_export), Machine::new(&export.0));
    for (at, step) in steps.iter().enumerate() {
        match step {
            Step::Act(action) if !model.applies(action) => {}
            Step::Act(action) => {
                let (expected, got) = (model.perform(action), real.perform(action));
                if expected != got {
                    let text = format!("step {at}, {action:?}:\n  model: {expected}\n  write-back: {got}");
                    return Err(TestCaseError::fail(text));
                }
            }
            Step::Restart | Step::Crash => {
                if matches!(step, Step::Crash) {
                    real.sync();
                    image(&place(life), &place(life + 1));
                    life += 1;
                }
                model.release_all();
                let nodes = real.into_nodes();
                drop(export);
                export = opened(&origin, &place(life));
                assert_eq!(export.0.status().torn, 0);
                real = Machine::continued(&export.0, nodes);
            }
        }
    }
    let (expected, got) = (model.whole_tree(), real.whole_tree());
    if expected != got {
        return Err(TestCaseError::fail(format!("the trees differ:\n{expected:#?}\n{got:#?}")));
    }
    Ok(())
}

#[test]
fn answered_operations_survive_restarts() {
    if let Err(failure) = runner(CASES).run(&sequences(), |steps| check(&steps)) {
        panic!("{failure}");
    }
}
