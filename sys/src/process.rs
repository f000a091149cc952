//! Processes: sessions, standard streams, signals, limits.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, getppid,
    getrlimit, kill_process, kill_process_group, pidfd_open, set_child_subreaper,
    set_parent_process_death_signal, setrlimit, setsid, waitid, waitpgid,
};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout, stdin, stdout};

use crate::errno::{Errno, Result, retry};

/// Starts a new session, without a controlling terminal. EPERM in the leader of a process group.
pub fn leave_session() -> Result<()> {
    setsid().map(drop)
}

/// Sends SIGTERM to a process. ESRCH if there is none.
pub fn terminate(process: u32) -> Result<()> {
    kill_process(pid(process)?, Signal::TERM)
}

/// Sends SIGKILL to a process. ESRCH if there is none.
pub fn kill(process: u32) -> Result<()> {
    kill_process(pid(process)?, Signal::KILL)
}

/// The signal sent to a process when its parent ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// SIGTERM, so that the process can clean up.
    Asked,
    /// SIGKILL, which the process cannot prevent.
    Killed,
}

/// Makes the kernel signal the process that `command` starts when the thread that started it ends, at the
/// latest with this process (prctl(2), `PR_SET_PDEATHSIG`). Ineffective for a process that changes its user
/// or gains capabilities.
pub fn ends_with_this_thread(command: &mut Command, death: Death) {
    let parent = getpid();
    let signal = match death {
        Death::Asked => Signal::TERM,
        Death::Killed => Signal::KILL,
    };
    let set = move || {
        set_parent_process_death_signal(Some(signal))?;
        // The parent may have ended before the previous call.
        if getppid() == Some(parent) { Ok(()) } else { Err(Errno::SRCH.into()) }
    };
    // SAFETY: between fork(2) and execve(2) only system calls are made: nothing is allocated and no lock is
    // taken (signal-safety(7)).
    unsafe { command.pre_exec(set) };
}

/// Sends SIGKILL to all processes of a group. ESRCH if there are none.
pub fn kill_group(group: u32) -> Result<()> {
    kill_process_group(pid(group)?, Signal::KILL)
}

/// Makes this process the parent of orphaned descendants (prctl(2), PR_SET_CHILD_SUBREAPER).
pub fn adopt_orphans() -> Result<()> {
    set_child_subreaper(Some(getpid()))
}

/// Waits until a child has ended, without reaping it: its number cannot be reused by another process or group
/// before it is reaped.
pub fn await_end(child: u32) -> Result<()> {
    let child = pid(child)?;
    retry(|| waitid(WaitId::Pid(child), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)).map(drop)
}

/// Waits until this process has no child in that group, and reaps each child of the group that ends.
pub fn await_group(group: u32) -> Result<()> {
    let group = pid(group)?;
    loop {
        match retry(|| waitpgid(group, WaitOptions::empty())) {
            Ok(_) => {}
            Err(Errno::CHILD) => return Ok(()),
            Err(errno) => return Err(errno),
        }
    }
}

/// Returns a descriptor that becomes readable when the process ends. A child must still be reaped.
pub fn watched(process: u32) -> Result<OwnedFd> {
    pidfd_open(pid(process)?, PidfdFlags::empty())
}

fn pid(process: u32) -> Result<Pid> {
    i32::try_from(process).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)
}

/// Returns the standard input and output as descriptors that child programs do not inherit, and replaces them
/// by `null`: later output is lost.
pub fn take_standard_streams(null: impl AsFd) -> Result<(OwnedFd, OwnedFd)> {
    let above_standard = 3;
    let streams =
        (fcntl_dupfd_cloexec(stdin(), above_standard)?, fcntl_dupfd_cloexec(stdout(), above_standard)?);
    redirect_input_and_output(null.as_fd())?;
    Ok(streams)
}

/// Redirects standard input and output to `null`, and standard error to `log`.
pub fn redirect_standard_streams(null: impl AsFd, log: impl AsFd) -> Result<()> {
    redirect_input_and_output(null.as_fd())?;
    dup2_stderr(log.as_fd())
}

fn redirect_input_and_output(null: BorrowedFd<'_>) -> Result<()> {
    dup2_stdin(null)?;
    dup2_stdout(null)
}

/// The limit on open descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenFileLimit {
    /// Current limit, beyond which descriptors are refused (EMFILE).
    pub soft: u64,
    /// Maximum to which an unprivileged process may raise it.
    pub hard: u64,
}

/// Returns the limit on open descriptors; `u64::MAX` for no limit.
pub fn open_file_limit() -> OpenFileLimit {
    let limit = getrlimit(Resource::Nofile);
    OpenFileLimit { soft: limit.current.unwrap_or(u64::MAX), hard: limit.maximum.unwrap_or(u64::MAX) }
}

/// Raises the soft limit on open descriptors to the hard one.
pub fn raise_open_file_limit() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_file_limit_is_raised_to_hard_limit() {
        raise_open_file_limit().expect("raise");
        let limit = open_file_limit();
        assert_eq!(limit.soft, limit.hard);
    }
}
