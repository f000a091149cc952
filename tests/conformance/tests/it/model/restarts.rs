//! Write-back against the reference model, with orderly and sudden restarts in between. After a sudden one,
//! only stable state is left.

use std::path::Path;
use std::time::Duration;

use fastrand::Rng;
use tombolo_back_memory::Memory;
use tombolo_layer_cache::store::StoreOptions;
use tombolo_layer_cache::{CacheExport, Contract, Options, over};
use tombolo_layer_write_back::WriteBackExport;
use tombolo_test_support::history::{Machine, Mix, Step, run_sequences};
use tombolo_test_support::{Session, image};

use super::{compare, compare_trees};
use crate::common::{memory, opened_store};

const CASES: u64 = 20;

/// Required operations, and those on extended attributes.
const MIX: Mix = Mix { names: 3, nodes: 3, openings: 3, xattrs: 1, ranges: 0, ..Mix::ALL };

#[derive(Clone, Debug)]
enum Event {
    Step(Step),
    /// Ends the layers in order and reopens their state on the disk.
    Restart,
    /// Makes everything stable and continues from a copy of the files at that time.
    Crash,
}

fn sample(rng: &mut Rng) -> Vec<Event> {
    let event = |rng: &mut Rng| match rng.u8(..33) {
        0..30 => Event::Step(Step::sample(rng, &MIX)),
        30 => Event::Restart,
        _ => Event::Crash,
    };
    (0..rng.usize(1..100)).map(|_| event(rng)).collect()
}

/// Opens a write-back layer over a cache of `origin`, both with their state in `dir`.
fn opened(origin: &Memory, dir: &Path) -> (WriteBackExport, CacheExport) {
    let store = opened_store(&dir.join("cache"), StoreOptions::default());
    let options = Options { contract: Contract::Exclusive, ..Options::default() };
    let cache = over(origin, store, options).expect("a cache");
    // The state must not change while it is copied.
    let never = Duration::from_secs(24 * 60 * 60);
    let kept = tombolo_layer_write_back::Options { idle: never, delay_max: never, ..Default::default() };
    let export = tombolo_layer_write_back::over(&cache, &dir.join("write-back"), kept);
    (export.expect("a journal"), cache)
}

fn check(events: &[Event]) -> Result<(), String> {
    let dir = tempfile::tempdir().expect("a directory");
    let origin = Memory::default();
    let place = |life: usize| dir.path().join(life.to_string());
    let mut life = 0;
    let mut export = opened(&origin, &place(life));
    let (mut model, mut real) = (Machine::new(&*memory()), Machine::new(&export.0));
    for (at, event) in events.iter().enumerate() {
        if let Event::Step(step) = event {
            compare(&mut model, &mut real, at, step)?;
            continue;
        }
        if matches!(event, Event::Crash) {
            real.session.sync();
            image(&place(life), &place(life + 1));
            life += 1;
        }
        model.release_all();
        let nodes = real.into_nodes();
        drop(export);
        export = opened(&origin, &place(life));
        assert_eq!(export.0.status().torn, 0);
        real = Machine::continued(Session::attach(&export.0), nodes);
    }
    compare_trees(&model, &real)
}

#[test]
fn answered_operations_survive_restarts() {
    run_sequences(CASES, sample, check);
}
