//! Injection of errors and short transfers by a plan.
//!
//! A plan is a list of rules: the operation, which of its calls, and the fault. The effect of a rule depends
//! only on the plan's seed and the number of calls so far, so a failure is reproducible.
//!
//! A call that fails by a rule is not performed. Short writes, and short reads without end of file, are
//! behaviour that every caller must handle.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tombolo_core::block::BlockDevice;
use tombolo_core::fs::Export;
use tombolo_core::{Answer, Error};

use crate::around::{Around, Call, Layered, LayeredDisk, Payload};
use tombolo_core::fs::Op;

/// A list of faults to inject.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Rules, in order: the first [`What::Fail`] that selects a call decides, and the calls that it fails are
    /// not counted by later rules of this kind. If several [`What::Short`] select a call, the smallest limit
    /// holds.
    pub rules: Vec<Rule>,
    /// Seed of [`When::Chance`].
    pub seed: u64,
}

/// A rule of a [`Plan`].
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The operation; `None` for all.
    pub op: Option<Op>,
    /// Selection among the matching calls.
    pub when: When,
    /// Effect on the selected calls.
    pub what: What,
}

/// Selection among the calls that match a rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// All calls.
    Always,
    /// The `n`th call only, counted from 1.
    Nth(u64),
    /// Every `n`th call; none if `n` is 0.
    Every(u64),
    /// Each call with this probability, 0 to 1.
    Chance(f64),
}

/// The effect of a rule on a call.
#[derive(Clone, Copy, Debug)]
pub enum What {
    /// Failure with this error, without performing the call.
    Fail(fn() -> Error),
    /// Limit of a read or write, in bytes.
    Short(usize),
}

/// The [`Around`] of this layer, which [`over`] and [`over_disk`] apply.
#[derive(Debug)]
pub struct Faults {
    rules: Vec<Armed>,
    seed: u64,
}

/// A rule, and the number of calls so far that match its operation.
#[derive(Debug)]
struct Armed {
    rule: Rule,
    calls: AtomicU64,
}

/// Wraps `inner`, injecting the faults of `plan`.
pub fn over(inner: Arc<dyn Export>, plan: Plan) -> Layered<dyn Export, Faults> {
    Layered::new(inner, Arc::new(Faults::new(plan)))
}

/// Wraps a disk as [`over`] wraps an export: its writes and reads are [`Op::Write`] and [`Op::Read`], on
/// which [`What::Short`] has no effect; for its other operations see [`LayeredDisk`].
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

/// Returns a pseudo-random number from 0 up to 1, determined by the arguments (SplitMix64).
fn draw(seed: u64, call: u64) -> f64 {
    let mut mixed = seed.wrapping_add(call.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    // The precision of an f64 is 53 bits.
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
