//! Random numbers reproducible from a seed.

use std::time::Duration;

/// A generator (SplitMix64), the same on every machine.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Creates the generator of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a separate generator for a part of the run, so that its draws do not change other parts.
    pub fn fork(&mut self) -> Self {
        Self(self.next_u64())
    }

    /// Samples any number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Samples a number below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.next_u64() % end }
    }

    /// Samples a length from 1 to `max`.
    pub fn up_to(&mut self, max: usize) -> usize {
        1 + self.below(max as u64) as usize
    }

    /// Returns `true` with a probability of `per_mille` thousandths.
    pub fn chance(&mut self, per_mille: u32) -> bool {
        self.below(1000) < u64::from(per_mille)
    }

    /// Samples a duration from `range`, both ends included.
    pub fn between(&mut self, (least, most): (Duration, Duration)) -> Duration {
        let span_us = most.saturating_sub(least).as_micros() as u64;
        least + Duration::from_micros(self.below(span_us + 1))
    }

    /// Samples one of `choices`.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len() as u64) as usize]
    }
}
