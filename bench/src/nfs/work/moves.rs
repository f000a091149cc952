//! Files moved by a client that is a process of its own.

use super::Driver;
use crate::drive::Job;
use crate::error::Result;
use crate::measure::{Clock, Work};

/// One file again and again.
pub struct Moves {
    driver: Driver,
    job: Job,
    count_max: u64,
}

impl Moves {
    /// At most `count_max` of them in a turn.
    pub fn new(driver: Driver, job: Job, count_max: u64) -> Self {
        Self { driver, job, count_max }
    }
}

impl Work for Moves {
    fn run(&mut self, count: u64, clock: &mut Clock) -> Result<()> {
        let command = self.job.to_string();
        for _ in 0..count {
            let (took, _) = self.driver.run(&command)?;
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
