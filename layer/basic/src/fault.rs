//! Injects errors and short transfers by a plan.
//!
//! A plan is a list of rules: which operation, which of its calls, and what goes wrong. What a rule does
//! depends on its seed and on how many calls it has seen, on nothing else, so a failure can be run again.
//!
//! A call that is made to fail is not performed. Short writes, and short reads that do not say that the file
//! ends, are something every caller must live with.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tombolo_core::block::BlockDevice;
use tombolo_core::fs::Export;
use tombolo_core::{Answer, Error};

use crate::around::{Around, Call, Layered, LayeredDisk, Payload};
use tombolo_core::fs::Op;

/// What goes wrong, and when.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Each is asked about each call, in order; the first that strikes decides.
    pub rules: Vec<Rule>,
    /// Decides which calls [`When::Chance`] strikes.
    pub seed: u64,
}

/// One rule of a [`Plan`].
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The operation; `None`: every one.
    pub op: Option<Op>,
    /// Which of the calls that match.
    pub when: When,
    /// What happens to them.
    pub what: What,
}

/// Which calls a rule strikes, of those that match.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// All.
    Always,
    /// The `n`th alone, counted from 1.
    Nth(u64),
    /// Every `n`th.
    Every(u64),
    /// Each with this probability, 0 to 1.
    Chance(f64),
}

/// What a rule does to a call.
#[derive(Clone, Copy, Debug)]
pub enum What {
    /// It fails with this error.
    Fail(fn() -> Error),
    /// A read or write moves at most so many bytes.
    Short(usize),
}

/// The layer's behaviour; [`over`] applies it.
#[derive(Debug)]
pub struct Faults {
    rules: Vec<Armed>,
    seed: u64,
}

#[derive(Debug)]
struct Armed {
    rule: Rule,
    calls: AtomicU64,
}

/// `inner`, with what `plan` says going wrong.
pub fn over(inner: Arc<dyn Export>, plan: Plan) -> Layered<dyn Export, Faults> {
    Layered::new(inner, Arc::new(Faults::new(plan)))
}

/// The same for a disk: its writes and reads are [`Op::Write`] and [`Op::Read`], and fail as a whole; what
/// else there is, see [`LayeredDisk`].
pub fn over_disk(inner: Arc<dyn BlockDevice>, plan: Plan) -> Arc<dyn BlockDevice> {
    Arc::new(LayeredDisk::new(inner, Arc::new(Faults::new(plan))))
}

impl Around for Faults {
    #[inline]
    fn around<T: Payload>(&self, call: Call, inner: impl FnOnce() -> Answer<T>) -> Answer<T> {
        match self.failure(call.op) {
            Some(error) => Answer::err(error()),
            None => inner(),
        }
    }

    #[inline]
    fn transfer_limit(&self, op: Op, len_bytes: usize) -> usize {
        self.rules.iter().enumerate().fold(len_bytes, |len_bytes, (index, armed)| match armed.rule.what {
            What::Short(most) if self.strikes(index, armed, op) => len_bytes.min(most),
            _ => len_bytes,
        })
    }
}

impl Faults {
    fn new(plan: Plan) -> Self {
        let rules = plan.rules.into_iter().map(|rule| Armed { rule, calls: AtomicU64::new(0) }).collect();
        Self { rules, seed: plan.seed }
    }

    #[inline]
    fn failure(&self, op: Op) -> Option<fn() -> Error> {
        self.rules.iter().enumerate().find_map(|(index, armed)| match armed.rule.what {
            What::Fail(error) if self.strikes(index, armed, op) => Some(error),
            _ => None,
        })
    }

    fn strikes(&self, index: usize, armed: &Armed, op: Op) -> bool {
        if armed.rule.op.is_some_and(|only| only != op) {
            return false;
        }
        let call = armed.calls.fetch_add(1, Ordering::Relaxed) + 1;
        match armed.rule.when {
            When::Always => true,
            When::Nth(nth) => call == nth,
            When::Every(nth) => nth > 0 && call.is_multiple_of(nth),
            When::Chance(chance) => draw(self.seed ^ index as u64, call) < chance,
        }
    }
}

/// A number from 0 up to 1 that looks random and follows from its arguments (SplitMix64).
fn draw(seed: u64, call: u64) -> f64 {
    let mut mixed = seed.wrapping_add(call.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    // 53 bits are what an f64 holds.
    (mixed >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strikes(when: When, seed: u64) -> Vec<u64> {
        let rule = Rule { op: Some(Op::Read), when, what: What::Fail(|| Error::NoSpace) };
        let faults = Faults { rules: vec![Armed { rule, calls: AtomicU64::new(0) }], seed };
        (1..=1000)
            .filter(|_| {
                // Calls of other operations do not count.
                assert!(faults.failure(Op::Write).is_none());
                faults.failure(Op::Read).is_some()
            })
            .collect()
    }

    #[test]
    fn rules_strike_the_calls_that_they_say() {
        assert_eq!(strikes(When::Nth(3), 0), [3]);
        assert_eq!(strikes(When::Every(400), 0), [400, 800]);
        assert_eq!(strikes(When::Always, 0).len(), 1000);
        assert!(strikes(When::Every(0), 0).is_empty());
    }

    #[test]
    fn chance_follows_from_the_seed() {
        let struck = strikes(When::Chance(0.25), 7);
        assert!((200..300).contains(&struck.len()), "{} of 1000", struck.len());
        assert_eq!(struck, strikes(When::Chance(0.25), 7));
        assert_ne!(struck, strikes(When::Chance(0.25), 8));
        assert!(strikes(When::Chance(0.0), 7).is_empty());
    }

    #[test]
    fn only_transfers_are_shortened() {
        let rule = Rule { op: Some(Op::Write), when: When::Every(2), what: What::Short(10) };
        let faults = Faults { rules: vec![Armed { rule, calls: AtomicU64::new(0) }], seed: 0 };
        let limits: Vec<_> = (0..4).map(|_| faults.transfer_limit(Op::Write, 100)).collect();
        assert_eq!(limits, [100, 10, 100, 10]);
        assert_eq!(faults.transfer_limit(Op::Read, 100), 100);
        assert!(faults.failure(Op::Write).is_none());
    }
}
