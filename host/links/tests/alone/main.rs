//! Tests that need the process to themselves, as they count allocations or processor time, or capture the
//! log.

mod allocation;
mod idle;
mod log_lines;
#[path = "../it/requests/test_host.rs"]
#[expect(dead_code, reason = "its other users are the tests that share a process")]
mod test_host;
#[path = "../it/wait.rs"]
mod wait;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: tombolo_allocations::Counting = tombolo_allocations::Counting;

/// Locks the process for one test.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the processor time used by the process.
fn process_time() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
