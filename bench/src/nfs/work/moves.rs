//! Files moved by a client that is a process of its own.

use super::Driver;
use crate::drive::{Direction, Job};
use crate::error::Result;
use crate::measure::{Clock, Work};

pub struct Moves {
    driver: Driver,
    command: String,
    job: Job,
    count_max: u64,
}

impl Moves {
    /// At most `count_max` of them in a turn.
    pub fn new(driver: Driver, job: Job, count_max: u64) -> Self {
        Self { driver, command: job.to_string(), job, count_max }
    }

    /// The same by libnfs, which has other words for what lies in memory of the file's size.
    pub fn by_libnfs(driver: Driver, job: Job, count_max: u64) -> Self {
        let Job { direction, limit, piece_bytes, file_bytes } = job;
        let word = if direction == Direction::Read { "fetch" } else { "store" };
        let command = format!("{word} {limit} {} {piece_bytes} {file_bytes}", job.pieces());
        Self { driver, command, job, count_max }
    }
}

impl Work for Moves {
    fn run(&mut self, count: u64, clock: &mut Clock) -> Result<()> {
        for _ in 0..count {
            let (took, _) = self.driver.run(&self.command)?;
            clock.record(took, 1);
        }
        Ok(())
    }

    fn count_max(&self) -> u64 {
        self.count_max
    }

    fn bytes(&self) -> Option<u64> {
        Some(self.job.file_bytes as u64)
    }

    fn caller(&self) -> Option<u32> {
        Some(self.driver.process())
    }
}
