//! File transfers by a client in its own process.

use super::Driver;
use crate::drive::{Direction, Job};
use crate::measure::{Clock, Work};

/// Transfers by one of our clients, at most `count_max` in a turn.
pub fn moves(driver: Driver, job: Job, count_max: u64) -> Work<'static> {
    told(driver, job.to_string(), job, count_max)
}

/// Transfers by libnfs, which has other commands for data in memory.
pub fn moves_by_libnfs(driver: Driver, job: Job, count_max: u64) -> Work<'static> {
    let Job { direction, limit, piece_bytes, file_bytes } = job;
    let word = if direction == Direction::Read { "fetch" } else { "store" };
    let command = format!("{word} {limit} {} {piece_bytes} {file_bytes}", job.pieces());
    told(driver, command, job, count_max)
}

fn told(mut driver: Driver, command: String, job: Job, count_max: u64) -> Work<'static> {
    let caller = driver.process();
    let run = move |count, clock: &mut Clock| {
        for _ in 0..count {
            let (took, _) = driver.run(&command)?;
            clock.record(took, 1);
        }
        Ok(())
    };
    Work::new(run).count_max(count_max).bytes(job.file_bytes as u64).caller(caller)
}
