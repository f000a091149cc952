//! Random changes: in the end, the origin must equal a twin that was changed directly.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fastrand::Rng;
use tombolo_back_memory::Memory;
use tombolo_test_support::Session;
use tombolo_test_support::history::{Action, Machine, Mix, Outcome, Step, cases};

use crate::shown::{hidden, tree};
use crate::trouble::Trouble;
use crate::world::{Origin, Proxy};

/// Operations of the superuser.
const MIX: Mix = Mix { users: 1, names: 6, nodes: 3, openings: 6, xattrs: 1, ranges: 0 };

/// A twin and a proxy, changed alike.
pub struct Pair {
    pub twin: Machine,
    pub here: Machine,
    pub proxy: Proxy,
}

impl Pair {
    pub fn new(origin: &Origin) -> Self {
        let proxy = origin.proxy();
        Self { twin: Machine::new(&*Arc::<Memory>::default()), here: Machine::new(&proxy.write_back), proxy }
    }

    /// Performs a random step on both; returns it, and the results.
    pub fn step(&mut self, random: &mut Rng) -> (Step, Outcome, Outcome) {
        loop {
            let step = Step::sample(random, &MIX);
            if self.twin.applies(&step) {
                let (expected, got) = (self.twin.perform_now(&step), self.here.perform_now(&step));
                return (step, expected, got);
            }
        }
    }

    /// Performs a random step, whose results must agree; returns it for messages.
    fn step_alike(&mut self, random: &mut Rng, seed: u64, at: usize) -> String {
        let (step, expected, got) = self.step(random);
        let context = format!("seed {seed}, step {at}: {step:?}");
        assert_eq!(got, expected, "{context}");
        context
    }

    /// Ends the openings and the proxy, and starts the next one.
    pub fn restart(self, origin: &Origin) -> Self {
        let Self { mut twin, here, proxy } = self;
        twin.release_all();
        let nodes = here.into_nodes();
        drop(proxy);
        let proxy = origin.proxy();
        Self { twin, here: Machine::continued(Session::attach(&proxy.write_back), nodes), proxy }
    }

    /// Asserts that the origin and the proxy's view equal the twin; without times, as a directory may keep a
    /// later one after a change that failed halfway.
    fn compare(&self, origin: &Origin, context: &str) {
        assert_eq!(tree(&self.here.session, false), tree(&self.twin.session, false), "{context}");
        assert_eq!(tree(&origin.direct, false), tree(&self.twin.session, false), "{context}");
    }

    /// Sends all changes.
    fn flush(&self, context: &str) {
        self.proxy.write_back.flush().unwrap_or_else(|error| panic!("{context}: {error}"));
    }

    /// Ends the openings, which must have the same data.
    pub fn release_all(&mut self, context: &str) {
        for open in 0..self.twin.openings() {
            let step = Step { action: Action::Read(open, 0, 1 << 17), user: 0 };
            if self.twin.applies(&step) {
                assert_eq!(self.here.perform_now(&step), self.twin.perform_now(&step), "{context}: {step:?}");
            }
        }
        self.twin.release_all();
        self.here.release_all();
    }
}

#[test]
fn the_origin_becomes_what_a_twin_is() {
    for seed in 0..cases(4) {
        let mut random = Rng::with_seed(seed);
        let origin = Origin::new();
        let mut pair = Pair::new(&origin);
        for at in 0..400 {
            let context = pair.step_alike(&mut random, seed, at);
            if random.u8(0..30) == 0 {
                pair.flush(&context);
                assert_eq!(tree(&origin.direct, false), tree(&pair.twin.session, false), "{context}");
                assert_eq!(tree(&origin.direct, true), tree(&pair.here.session, true), "{context}");
            }
        }
        let context = format!("seed {seed}");
        pair.release_all(&context);
        pair.flush(&context);
        let status = pair.proxy.write_back.status();
        assert_eq!((status.dirty_bytes, status.dirty_nodes), (0, 0), "{context}");
        assert_eq!(tree(&origin.direct, false), tree(&pair.twin.session, false), "{context}");
    }
}

#[test]
fn origin_failures_and_proxy_ends_lose_or_repeat_nothing() {
    for seed in 0..cases(4) {
        let mut random = Rng::with_seed(seed);
        let trouble = Trouble::new(seed);
        let origin = Origin::with(|memory| trouble.over(memory));
        let mut pair = Pair::new(&origin);
        for at in 0..400 {
            let context = pair.step_alike(&mut random, seed, at);
            match random.u8(0..60) {
                0..=2 => {
                    trouble.rate.store([5, 30, 200][random.usize(0..3)], Ordering::Relaxed);
                    let flushed = pair.proxy.write_back.flush();
                    trouble.rate.store(0, Ordering::Relaxed);
                    if flushed.is_ok() {
                        pair.compare(&origin, &context);
                    }
                }
                3 => {
                    pair = pair.restart(&origin);
                    assert_eq!(tree(&pair.here.session, false), tree(&pair.twin.session, false), "{context}");
                }
                4 => {
                    pair.flush(&context);
                    pair.compare(&origin, &context);
                }
                _ => {}
            }
        }
        let context = format!("seed {seed}");
        pair.release_all(&context);
        pair.flush(&context);
        pair.compare(&origin, &context);
        let status = pair.proxy.write_back.status();
        assert_eq!((status.dirty_bytes, status.dirty_nodes, status.conflicts), (0, 0, 0), "{context}");
        assert_eq!(hidden(&origin.direct), [""; 0], "{context}");
    }
}
