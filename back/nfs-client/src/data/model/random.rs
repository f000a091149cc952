//! Property tests: random orders of requests, replies, failures and restarts.

use proptest::prelude::*;
use tombolo_core::Stability;

use super::Quirk;
use super::world::{SIZE, World};

#[derive(Clone, Debug)]
enum Step {
    Write { offset: usize, len: usize, retainable: bool, stability: Stability },
    Read { offset: usize, len: usize },
    Flush,
    Cut(usize),
    Work { which: usize, bytes_max: Option<usize> },
    Fail { which: usize },
    Tell { which: usize },
    Restart { forgets: bool },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let stability = prop_oneof![8 => Just(Stability::Unstable), 1 => Just(Stability::FileSync)];
    let write = (0..SIZE, 1..40usize, any::<bool>(), stability)
        .prop_map(|(offset, len, retainable, stability)| Step::Write { offset, len, retainable, stability });
    let sequential = (0..12usize, any::<bool>()).prop_map(|(at, retainable)| Step::Write {
        offset: at * 8,
        len: 8,
        retainable,
        stability: Stability::Unstable,
    });
    let work = (0..8usize, prop::option::weighted(0.2, 1..12usize))
        .prop_map(|(which, bytes_max)| Step::Work { which, bytes_max });
    let step = prop_oneof![
        8 => write,
        6 => sequential,
        5 => (0..SIZE, 1..48usize).prop_map(|(offset, len)| Step::Read { offset, len }),
        3 => Just(Step::Flush),
        1 => (0..SIZE).prop_map(Step::Cut),
        16 => work,
        1 => (0..8usize).prop_map(|which| Step::Fail { which }),
        16 => (0..8usize).prop_map(|which| Step::Tell { which }),
        1 => any::<bool>().prop_map(|forgets| Step::Restart { forgets }),
    ];
    prop::collection::vec(step, 1..150)
}

fn perform(world: &mut World, step: &Step) {
    match *step {
        Step::Write { offset, len, retainable, stability } => world.write(offset, len, retainable, stability),
        Step::Read { offset, len } => world.read(offset, len),
        Step::Flush => world.flush(),
        Step::Cut(size) => world.cut(size),
        Step::Work { which, bytes_max } => world.work(which, Quirk { bytes_max, ..Quirk::default() }),
        Step::Fail { which } if world.may_fail() => {
            world.work(which, Quirk { fails: true, ..Quirk::default() })
        }
        Step::Fail { .. } => {}
        Step::Tell { which } => world.tell(which),
        Step::Restart { forgets } => world.server.restart(forgets),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_write_is_lost_silently_and_no_byte_invented(in_flight in 1..6usize, steps in steps()) {
        let mut world = World::new(in_flight);
        for step in &steps {
            perform(&mut world, step);
        }
        world.finish();
    }
}
