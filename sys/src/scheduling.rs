//! How the kernel shares processors out among threads.

use std::mem::MaybeUninit;
use std::time::Duration;

use crate::errno::{Errno, Result, check};

/// Asks the kernel to give the calling thread, and those that it starts later, the processor in short turns,
/// of about `turn` each: it gets no more of it than others, but sooner. The kernel knows turns of 0.1 to 100
/// ms and takes the nearest (Linux 6.12; an older one does as before). Nothing else about the thread changes.
pub fn take_short_turns(turn: Duration) -> Result<()> {
    let mut attr = own_attr()?;
    if attr.sched_policy != libc::SCHED_OTHER as u32 && attr.sched_policy != libc::SCHED_BATCH as u32 {
        return Err(Errno::INVAL);
    }
    attr.sched_runtime = u64::try_from(turn.as_nanos()).unwrap_or(u64::MAX);
    set_own_attr(&attr)
}

/// Has the calling thread run whenever it can, before all that are not of this kind (`SCHED_RR`, the lowest
/// priority; threads and processes that it starts are ordinary). For one that mostly waits. Needs
/// `CAP_SYS_NICE`.
pub fn run_before_others() -> Result<()> {
    let mut attr = own_attr()?;
    attr.sched_policy = libc::SCHED_RR as u32;
    attr.sched_priority = 1;
    attr.sched_nice = 0;
    attr.sched_flags |= libc::SCHED_FLAG_RESET_ON_FORK as u64;
    set_own_attr(&attr)
}

fn set_own_attr(attr: &libc::sched_attr) -> Result<()> {
    // SAFETY: the kernel reads as many bytes as the structure's first field says, which is its size.
    let outcome = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const *attr, 0) };
    check(outcome).map(drop)
}

fn own_attr() -> Result<libc::sched_attr> {
    let mut attr = MaybeUninit::<libc::sched_attr>::zeroed();
    let size = size_of::<libc::sched_attr>();
    // SAFETY: the kernel writes at most `size` bytes where there is room for as many.
    let outcome = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, attr.as_mut_ptr(), size, 0) };
    check(outcome)?;
    // SAFETY: all zeroes are a valid value, whatever of it the kernel has overwritten.
    let mut attr = unsafe { attr.assume_init() };
    attr.size = u32::try_from(size).map_err(|_| Errno::INVAL)?;
    Ok(attr)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_can_ask_for_short_turns() {
        std::thread::spawn(|| {
            let before = own_attr().expect("attributes");
            take_short_turns(Duration::from_micros(200)).expect("short turns");
            let after = own_attr().expect("attributes");
            assert_eq!((after.sched_policy, after.sched_nice), (before.sched_policy, before.sched_nice));
        })
        .join()
        .expect("join");
    }
}
