//! Tracing of another process's system calls (ptrace(2)), for measurements of the memory that it sends and
//! receives.

use std::collections::HashSet;
use std::fs;

use crate::errno::{Errno, Result, check, retry};

/// The entry to or return from a system call of a traced thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Entry into a call, before the kernel executes it.
    Call {
        /// Kernel id of the thread.
        thread: u32,
        /// Kind of data transfer; `None` for all other calls.
        data: Option<DataCall>,
        /// Arguments, as the thread passed them in registers.
        arguments: [u64; 6],
    },
    /// Return from the call that the thread entered last.
    Return {
        /// Kernel id of the thread.
        thread: u32,
        /// Return value: negative numbers are errors.
        value: i64,
    },
}

/// A system call that moves data between memory and a descriptor, classified by the form of the arguments
/// that refer to the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataCall {
    /// From an address and a length: write(2), pwrite(2), sendto(2).
    SendBytes,
    /// From a vector: writev(2), pwritev2(2).
    SendVector,
    /// From a message: sendmsg(2).
    SendMessage,
    /// To an address and a length: read(2), pread(2), recvfrom(2).
    ReceiveBytes,
    /// To a vector: readv(2), preadv2(2).
    ReceiveVector,
    /// To a message: recvmsg(2).
    ReceiveMessage,
}

impl DataCall {
    fn of(number: u64) -> Option<Self> {
        let number = libc::c_long::try_from(number).ok()?;
        Some(match number {
            libc::SYS_write | libc::SYS_pwrite64 | libc::SYS_sendto => Self::SendBytes,
            libc::SYS_writev | libc::SYS_pwritev2 => Self::SendVector,
            libc::SYS_sendmsg => Self::SendMessage,
            libc::SYS_read | libc::SYS_pread64 | libc::SYS_recvfrom => Self::ReceiveBytes,
            libc::SYS_readv | libc::SYS_preadv2 => Self::ReceiveVector,
            libc::SYS_recvmsg => Self::ReceiveMessage,
            _ => return None,
        })
    }
}

/// Reports every system call of a process, blocking this thread until the process ends. All its threads are
/// traced, including later ones. `ready` is called once all further calls are reported.
///
/// Slows the process down by an order of magnitude. Threads are released before they exit, so that the
/// parent can wait for the process as usual, unless a signal kills it. EPERM if this process may not trace
/// that one.
pub fn follow(process: u32, ready: impl FnOnce(), mut on: impl FnMut(Moment)) -> Result<()> {
    let mut threads = HashSet::new();
    for thread in threads_of(process)? {
        seize(thread)?;
        threads.insert(thread);
    }
    let mut ready = Some(ready);
    let mut stopped = HashSet::new();
    while !threads.is_empty() {
        let Some((thread, status)) = wait()? else { return Ok(()) };
        if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
            threads.remove(&thread);
            continue;
        }
        if status >> 16 == libc::PTRACE_EVENT_EXIT {
            // From now on the thread belongs to its parent, which waits for its end.
            threads.remove(&thread);
            detach(thread)?;
            continue;
        }
        threads.insert(thread);
        if let Some(moment) = moment(thread, status)? {
            on(moment);
        }
        stopped.insert(thread);
        if stopped.len() >= threads.len()
            && let Some(ready) = ready.take()
        {
            ready();
        }
        resume(thread, signal_of(status))?;
    }
    Ok(())
}

fn threads_of(process: u32) -> Result<Vec<u32>> {
    let listed = fs::read_dir(format!("/proc/{process}/task")).map_err(|_| Errno::SRCH)?;
    Ok(listed.flatten().filter_map(|thread| thread.file_name().to_str()?.parse().ok()).collect())
}

fn seize(thread: u32) -> Result<()> {
    let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_TRACEEXIT;
    // SAFETY: this request reads no memory of ours; the options are passed in place of a pointer.
    let outcome = unsafe { libc::ptrace(libc::PTRACE_SEIZE, id(thread)?, 0_usize, options as usize) };
    check(outcome)?;
    // SAFETY: this request has no arguments and reads no memory of ours.
    let outcome = unsafe { libc::ptrace(libc::PTRACE_INTERRUPT, id(thread)?, 0_usize, 0_usize) };
    check(outcome).map(drop)
}

/// Returns the next thread that stopped or ended; `None` if none is left.
fn wait() -> Result<Option<(u32, libc::c_int)>> {
    let mut status = 0;
    let waited = retry(|| {
        // SAFETY: the kernel writes one number to `status`, which lives through the call.
        let outcome = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD) };
        check(outcome.into())
    });
    match waited {
        Ok(thread) => Ok(u32::try_from(thread).ok().map(|thread| (thread, status))),
        Err(Errno::CHILD) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the entry or return at which the thread stopped; `None` if it stopped for another reason.
fn moment(thread: u32, status: libc::c_int) -> Result<Option<Moment>> {
    /// Signal of a stop at a system call, marked by PTRACE_O_TRACESYSGOOD.
    const AT_CALL: libc::c_int = libc::SIGTRAP | 0x80;
    if !libc::WIFSTOPPED(status) || libc::WSTOPSIG(status) != AT_CALL {
        return Ok(None);
    }
    // struct ptrace_syscall_info of ptrace(2): op in the first byte, then at 24 the number or return value,
    // and the arguments.
    let mut info = [0_u64; 11];
    let size = size_of_val(&info);
    // SAFETY: the kernel writes at most `size` bytes to `info`, which has that size.
    let outcome =
        unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, id(thread)?, size, info.as_mut_ptr()) };
    match check(outcome) {
        // The thread was killed meanwhile; its end is reported next.
        Err(Errno::SRCH) => return Ok(None),
        outcome => outcome?,
    };
    let [op, _, _, first, arguments @ .., _] = info;
    Ok(match op.to_ne_bytes()[0] {
        1 => Some(Moment::Call { thread, data: DataCall::of(first), arguments }),
        2 => Some(Moment::Return { thread, value: first.cast_signed() }),
        _ => None,
    })
}

/// Returns the signal that a stop has delayed, to be delivered when the thread resumes; 0 for none.
fn signal_of(status: libc::c_int) -> libc::c_int {
    let signal = libc::WSTOPSIG(status);
    let event = status >> 16;
    if event != 0 || signal & 0x80 != 0 || signal == libc::SIGTRAP { 0 } else { signal }
}

fn resume(thread: u32, signal: libc::c_int) -> Result<()> {
    let signal = usize::try_from(signal).unwrap_or_default();
    // SAFETY: this request reads no memory of ours; the signal is passed in place of a pointer.
    let outcome = unsafe { libc::ptrace(libc::PTRACE_SYSCALL, id(thread)?, 0_usize, signal) };
    match check(outcome) {
        // The thread was killed meanwhile; its end is reported next.
        Err(Errno::SRCH) => Ok(()),
        outcome => outcome.map(drop),
    }
}

fn detach(thread: u32) -> Result<()> {
    // SAFETY: this request reads no memory of ours.
    let outcome = unsafe { libc::ptrace(libc::PTRACE_DETACH, id(thread)?, 0_usize, 0_usize) };
    match check(outcome) {
        Err(Errno::SRCH) => Ok(()),
        outcome => outcome.map(drop),
    }
}

fn id(thread: u32) -> Result<libc::pid_t> {
    libc::pid_t::try_from(thread).map_err(|_| Errno::SRCH)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn reads_and_writes_of_a_process_are_traced() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("cat");
        let process = child.id();
        let (to, reported) = channel();
        let follower = std::thread::spawn(move || {
            let mut moments = Vec::new();
            let followed =
                follow(process, || to.send(()).expect("the test waits"), |moment| moments.push(moment));
            followed.map(|()| moments)
        });
        if reported.recv().is_err() {
            let refused = follower.join().expect("no panic").expect_err("it ended early");
            panic!("may not follow: {refused}");
        }
        let mut input = child.stdin.take().expect("piped");
        input.write_all(b"twelve bytes").expect("write");
        drop(input);
        let moments = follower.join().expect("no panic").expect("followed");
        let sent = moments.iter().position(|moment| {
            matches!(moment, Moment::Call { data: Some(DataCall::SendBytes), arguments, .. } if arguments[2] == 12)
        });
        let sent = sent.expect("cat writes what it has read");
        assert!(matches!(moments[sent + 1], Moment::Return { value: 12, .. }), "{:?}", moments[sent + 1]);
        child.wait().expect("its end is told to its parent");
    }
}
