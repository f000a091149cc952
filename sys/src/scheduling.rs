//! Scheduling of threads.

use std::mem::MaybeUninit;
use std::time::Duration;

use crate::errno::{Errno, Result, check};

/// Requests short time slices of about `turn` for the calling thread, and threads that it starts later:
/// their share of the processor is unchanged, but their latency is lower. The kernel supports slices of 0.1
/// to 100 ms and clamps others (Linux 6.12; no effect on older ones). Other scheduling attributes are
/// unchanged. EINVAL for a thread that is not scheduled as an ordinary one (`SCHED_OTHER`, `SCHED_BATCH`).
pub fn use_short_slices(turn: Duration) -> Result<()> {
    let mut attr = own_attr()?;
    if attr.sched_policy != libc::SCHED_OTHER as u32 && attr.sched_policy != libc::SCHED_BATCH as u32 {
        return Err(Errno::INVAL);
    }
    attr.sched_runtime = u64::try_from(turn.as_nanos()).unwrap_or(u64::MAX);
    set_own_attr(&attr)
}

/// Gives the calling thread precedence over all ordinary threads (`SCHED_RR`, the lowest priority; threads
/// and processes that it starts are ordinary). Meant for threads that mostly wait. Needs `CAP_SYS_NICE`.
pub fn run_realtime() -> Result<()> {
    let mut attr = own_attr()?;
    attr.sched_policy = libc::SCHED_RR as u32;
    attr.sched_priority = 1;
    attr.sched_nice = 0;
    attr.sched_flags |= libc::SCHED_FLAG_RESET_ON_FORK as u64;
    set_own_attr(&attr)
}

fn set_own_attr(attr: &libc::sched_attr) -> Result<()> {
    // SAFETY: the kernel reads the number of bytes in the structure's first field, which is its size.
    let outcome = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const *attr, 0) };
    check(outcome).map(drop)
}

fn own_attr() -> Result<libc::sched_attr> {
    let mut attr = MaybeUninit::<libc::sched_attr>::zeroed();
    let size = size_of::<libc::sched_attr>();
    // SAFETY: the kernel writes at most `size` bytes to a buffer of that size.
    let outcome = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, attr.as_mut_ptr(), size, 0) };
    check(outcome)?;
    // SAFETY: all zeroes are a valid value, whichever fields the kernel has overwritten.
    let mut attr = unsafe { attr.assume_init() };
    attr.size = u32::try_from(size).map_err(|_| Errno::INVAL)?;
    Ok(attr)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_can_request_short_slices() {
        std::thread::spawn(|| {
            let before = own_attr().expect("attributes");
            use_short_slices(Duration::from_micros(200)).expect("short turns");
            let after = own_attr().expect("attributes");
            assert_eq!((after.sched_policy, after.sched_nice), (before.sched_policy, before.sched_nice));
        })
        .join()
        .expect("join");
    }
}
