//! Files moved by a client that is a process of its own.

use super::Driver;
use crate::drive::{Direction, Job};
use crate::measure::{Clock, Work};

/// By a client of ours, at most `count_max` of them in a turn.
pub fn moves(driver: Driver, job: Job, count_max: u64) -> Work<'static> {
    told(driver, job.to_string(), job, count_max)
}

/// The same by libnfs, which has other words for what lies in memory of the file's size.
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
