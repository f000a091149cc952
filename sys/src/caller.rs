//! The identity of a thread of this machine (proc_pid_status(5)), and whether it is being killed
//! (proc_pid_stat(5)).

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::read;

use crate::errno::{Errno, Result};

/// The identity with which a thread opens files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// User id for file-system access.
    pub uid: u32,
    /// Group id for file-system access.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// Maximum length read of a file in /proc: 65,536 groups (NGROUPS_MAX) fit.
const STATUS_BYTES_MAX: usize = 1 << 20;
/// Initial buffer size: the lines before the groups, and some dozens of groups.
const STATUS_BYTES: usize = 1 << 11;

/// Returns the current identity of a thread. ENOENT or ESRCH if the thread does not exist, or is not visible.
///
/// Three system calls (more for many groups), 6 µs: the kernel formats a page of text; three lines are used.
pub fn of_thread(thread: u32) -> Result<Caller> {
    let path = format!("/proc/{thread}/status");
    let status = openat(CWD, path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = [0; STATUS_BYTES];
    let got = read(&status, &mut text)?;
    let start = text.get(..got).unwrap_or_default();
    if let Some(caller) = parsed(start) {
        return Ok(caller);
    }
    let mut text = start.to_vec();
    loop {
        let end = text.len();
        if end >= STATUS_BYTES_MAX {
            return Err(Errno::OVERFLOW);
        }
        text.resize(end * 2, 0);
        let got = read(&status, text.get_mut(end..).unwrap_or_default())?;
        text.truncate(end + got);
        match parsed(&text) {
            Some(caller) => return Ok(caller),
            None if got == 0 => return Err(Errno::IO),
            None => {}
        }
    }
}

/// Returns `true` if a thread is exiting, or about to exit, because of a fatal signal; `false` if it runs, or
/// exits by itself. Fails with ENOENT or ESRCH if the thread does not exist, or is not visible.
///
/// For every fatal signal, the kernel makes SIGKILL pending for each thread of the process.
pub fn is_being_killed(thread: u32) -> Result<bool> {
    let path = format!("/proc/{thread}/task/{thread}/stat");
    let stat = openat(CWD, path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = [0; STATUS_BYTES];
    let got = read(&stat, &mut text)?;
    killed(text.get(..got).unwrap_or_default()).ok_or(Errno::IO)
}

/// The kernel's `PF_EXITING`: the thread is exiting.
const ENDING: u64 = 0x4;
/// The kernel's `PF_SIGNALED`: the thread exits because of a signal.
const SIGNALLED: u64 = 0x400;
/// SIGKILL in a signal set.
const KILL: u64 = 1 << 8;
/// Mask of the terminating signal in the status of a process (waitpid(2)).
const BY_SIGNAL: u64 = 0x7f;

/// Parses the fields `flags` (9), `signal` (31, pending for the thread) and `exit_code` (52). The name (2)
/// may contain any bytes.
fn killed(text: &[u8]) -> Option<bool> {
    let after_name = text.iter().rposition(|&byte| byte == b')')? + 1;
    let mut fields = text.get(after_name..)?.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
    let mut skip = |count| std::str::from_utf8(fields.nth(count)?).ok()?.parse::<u64>().ok();
    let (flags, pending, code) = (skip(6)?, skip(21)?, skip(20)?);
    // The kernel reports exit code 0 to processes that may not trace the thread, as in a sandbox. `SIGNALLED`
    // counts only then: the other threads of a process that calls exit(3) have that flag too.
    let by_signal = code & BY_SIGNAL != 0 || (code == 0 && flags & SIGNALLED != 0);
    Some(pending & KILL != 0 || (flags & ENDING != 0 && by_signal))
}

/// Parses the lines `Uid:` and `Gid:`, each with four numbers, the last of which applies to file systems, and
/// `Groups:`. Returns `None` unless all of them are complete.
fn parsed(text: &[u8]) -> Option<Caller> {
    let mut lines = text.split_inclusive(|&byte| byte == b'\n').filter_map(|line| line.strip_suffix(b"\n"));
    let mut numbers = |name: &[u8]| lines.find_map(|line| line.strip_prefix(name)).map(numbers_of);
    let uid = numbers(b"Uid:")?.nth(3)?;
    let gid = numbers(b"Gid:")?.nth(3)?;
    let groups = numbers(b"Groups:")?.collect();
    Some(Caller { uid, gid, groups })
}

fn numbers_of(line: &[u8]) -> impl Iterator<Item = u32> + '_ {
    line.split(u8::is_ascii_whitespace).filter_map(|word| std::str::from_utf8(word).ok()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::creds::{Checks, Identity, assume, may_assume, own_ids};

    #[test]
    fn this_thread_has_its_own_identity() {
        let caller = of_thread(rustix::thread::gettid().as_raw_nonzero().get() as u32).expect("status");
        assert_eq!((caller.uid, caller.gid), own_ids());
    }

    #[test]
    fn assumed_identity_with_many_groups_is_visible() {
        assert!(may_assume(), "this test needs root");
        let groups: Vec<u32> = (0..5000).map(|number| 100_000 + number).collect();
        let assumed =
            assume(Identity { uid: 12, gid: 34, groups: &groups }, Checks::Kernel).expect("assumed");
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let caller = std::thread::spawn(move || of_thread(thread)).join().expect("joined").expect("status");
        drop(assumed);
        assert_eq!((caller.uid, caller.gid), (12, 34));
        assert_eq!(caller.groups, groups);
    }

    #[test]
    fn pending_sigkill_or_signalled_exit_counts_as_killed() {
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        assert_eq!(is_being_killed(thread), Ok(false));
        assert!(is_being_killed(u32::MAX).is_err());
        let stat = |flags: u64, pending: u64, code: u64| {
            let middle = "3 ".repeat(21);
            let end = "4 ".repeat(20);
            killed(format!("7 (a) b 9) S 1 1 1 0 -1 {flags} {middle}{pending} {end}{code}\n").as_bytes())
        };
        assert_eq!(stat(0x40_0000, 0, 0), Some(false));
        assert_eq!(stat(0x40_0000, 0x2000, 0), Some(false), "a signal with a handler");
        assert_eq!(stat(0x40_0000, 0x100, 0), Some(true), "SIGKILL");
        assert_eq!(stat(0x40_0004, 0, 2), Some(true), "it ends by SIGINT");
        assert_eq!(stat(0x40_0004, 0, 0x300), Some(false), "it ends by exit(3)");
        assert_eq!(stat(0x40_0404, 0, 0), Some(true), "its code is not for us");
        assert_eq!(stat(0x40_0404, 0, 0x300), Some(false), "another thread has ended it by exit(3)");
        assert_eq!(killed(b"7 (a) S 1 1"), None);
    }

    #[test]
    fn missing_threads_and_truncated_texts_are_refused() {
        assert!(of_thread(u32::MAX).is_err());
        assert!(of_thread(0).is_err());
        let text = b"Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nFDSize:\t64\nGroups:\t9 10 \nNStgid:\t1\n";
        assert_eq!(parsed(text), Some(Caller { uid: 4, gid: 8, groups: vec![9, 10] }));
        assert_eq!(parsed(&text[..text.len() - 12]), None);
    }
}
