//! CPU affinity of threads.

use rustix::process::Pid;
use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};

use crate::errno::{Errno, Result};

/// Restricts a thread to `cores`; numbers from 1,024 on are ignored. `thread` is a kernel thread id; `None`
/// is the calling thread. Threads that the restricted thread starts later inherit the set. EINVAL if none of
/// the cores exists, ESRCH for an unknown thread.
pub fn pin(thread: Option<u32>, cores: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    for &core in cores.iter().filter(|&&core| core < CpuSet::MAX_CPU) {
        set.set(core);
    }
    sched_setaffinity(thread_id(thread)?, &set)
}

/// Returns the cores that a thread may run on, in ascending order.
pub fn cores(thread: Option<u32>) -> Result<Vec<usize>> {
    let set = sched_getaffinity(thread_id(thread)?)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect())
}

/// Returns the id of the calling thread.
pub fn own_thread() -> u32 {
    gettid().as_raw_nonzero().get().unsigned_abs()
}

fn thread_id(thread: Option<u32>) -> Result<Option<Pid>> {
    let Some(number) = thread else { return Ok(None) };
    let number = i32::try_from(number).ok().and_then(Pid::from_raw);
    number.map(Some).ok_or(Errno::SRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_stays_on_its_core() {
        std::thread::spawn(|| {
            let allowed = cores(None).expect("cores");
            let last = *allowed.last().expect("at least one core");
            pin(Some(own_thread()), &[last]).expect("pin");
            assert_eq!(cores(None).expect("cores"), [last]);
        })
        .join()
        .expect("thread");
    }

    #[test]
    fn pin_refuses_empty_set_and_unknown_thread() {
        assert_eq!(pin(None, &[]), Err(Errno::INVAL));
        assert_eq!(pin(Some(u32::MAX), &[0]), Err(Errno::SRCH));
    }
}
