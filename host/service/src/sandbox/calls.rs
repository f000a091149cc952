//! System calls, by seccomp(2): those on a list, and all others fail with EPERM.

use std::collections::HashMap;
use std::env::consts::ARCH;

use seccompiler::{BackendError, BpfProgram, TargetArch, apply_filter_all_threads, compile_from_json};
use serde_json::{Value, json};
use thiserror::Error as ThisError;

use super::Needs;

/// Why system calls are not confined.
#[derive(Debug, ThisError)]
pub enum CallsError {
    /// There is no list for this kind of processor.
    #[error("no list for this processor")]
    Processor(#[from] BackendError),
    /// The list is wrong, or the kernel does not take it.
    #[error("the list is not taken")]
    List(#[from] seccompiler::Error),
}

const EPERM: u32 = 1;
const ENOSYS: u32 = 38;

/// Memory, threads, time and waiting: what every program does.
const PROCESS: &[&str] = &[
    "brk",
    "mmap",
    "munmap",
    "mprotect",
    "mremap",
    "madvise",
    "futex",
    "futex_waitv",
    "set_robust_list",
    "rseq",
    "set_tid_address",
    "exit",
    "exit_group",
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_sigreturn",
    "rt_sigtimedwait",
    "sigaltstack",
    "restart_syscall",
    "gettid",
    "getpid",
    "getuid",
    "geteuid",
    "getgid",
    "getegid",
    "sched_yield",
    "sched_getaffinity",
    "sched_getattr",
    "getcpu",
    "membarrier",
    "nanosleep",
    "clock_nanosleep",
    "clock_gettime",
    "clock_getres",
    "gettimeofday",
    "getrandom",
    "getrusage",
    "sysinfo",
    "uname",
    "poll",
    "ppoll",
    "select",
    "pselect6",
    "epoll_create1",
    "epoll_ctl",
    "epoll_wait",
    "epoll_pwait",
    "epoll_pwait2",
    "eventfd2",
    "timerfd_create",
    "timerfd_settime",
    "timerfd_gettime",
    "pipe2",
    "socketpair",
    "dup",
    "dup2",
    "dup3",
    "close",
    "close_range",
    "fcntl",
    "memfd_create",
];

/// Files that are open, and those that landlock lets it open.
const FILES: &[&str] = &[
    "read",
    "write",
    "readv",
    "writev",
    "pread64",
    "pwrite64",
    "preadv",
    "pwritev",
    "preadv2",
    "pwritev2",
    "lseek",
    "fstat",
    "stat",
    "lstat",
    "newfstatat",
    "statx",
    "statfs",
    "fstatfs",
    "access",
    "faccessat",
    "faccessat2",
    "readlink",
    "readlinkat",
    "getcwd",
    "open",
    "openat",
    "openat2",
    "getdents64",
    "unlink",
    "unlinkat",
    "ftruncate",
    "fallocate",
    "fsync",
    "fdatasync",
    "sync_file_range",
    "fadvise64",
    "copy_file_range",
    "splice",
    "tee",
    "vmsplice",
    "flock",
];

/// Connections that came here.
const ACCEPTED: &[&str] = &[
    "accept",
    "accept4",
    "recvfrom",
    "recvmsg",
    "recvmmsg",
    "sendto",
    "sendmsg",
    "sendmmsg",
    "shutdown",
    "getsockopt",
    "setsockopt",
    "getsockname",
    "getpeername",
];

/// Connections that are made.
const MADE: &[&str] = &["socket", "connect", "bind"];

/// The same of files in directories. A C library's umask(2) cannot fail, so callers do not expect it to.
const CHANGES: &[&str] = &[
    "mkdirat",
    "mknodat",
    "linkat",
    "symlinkat",
    "renameat2",
    "renameat",
    "fchmod",
    "fchmodat",
    "fchmodat2",
    "fchown",
    "fchownat",
    "utimensat",
    "getxattr",
    "lgetxattr",
    "fgetxattr",
    "setxattr",
    "lsetxattr",
    "fsetxattr",
    "listxattr",
    "llistxattr",
    "flistxattr",
    "removexattr",
    "lremovexattr",
    "fremovexattr",
    "name_to_handle_at",
    "umask",
    "getgroups",
    "capget",
    "syncfs",
];

/// What an ioctl(2) may ask of a descriptor: flags of its own, bytes to read, whether it is a terminal and how large, a device's size and its file system's
/// UUID. Others can put words into the terminal that a process was started from (TIOCSTI), or make it a device's master.
const IOCTLS: [u32; 10] = [
    0x5421,      // FIONBIO
    0x5450,      // FIONCLEX
    0x5451,      // FIOCLEX
    0x541b,      // FIONREAD
    0x5401,      // TCGETS
    0x802c_542a, // TCGETS2
    0x5413,      // TIOCGWINSZ
    0x1268,      // BLKSSZGET
    0x8008_1272, // BLKGETSIZE64
    0x8011_1500, // FS_IOC_GETFSUUID
];

/// Calls that take a process or a thread and are for this one only, by the place of that argument; 0 is the caller.
const OF_ITSELF: [(&str, u8); 3] = [("prlimit64", 0), ("sched_setaffinity", 0), ("sched_setattr", 0)];

/// Flags of clone(2): threads of this process, in its namespaces. Of prctl(2): threads' names.
const CLONE_THREAD: u64 = 0x1_0000;
/// CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
const CLONE_NAMESPACES: u64 = 0x2_0000 | 0x200_0000 | 0x7c00_0000;
const PR_SET_NAME: u64 = 15;

pub(super) fn confine(needs: &Needs) -> Result<(), CallsError> {
    let processor = TargetArch::try_from(ARCH)?;
    let known = |filter: Value| -> Result<BpfProgram, CallsError> {
        let text = json!({ "server": filter }).to_string();
        let compiled: HashMap<_, _> = compile_from_json(text.as_bytes(), processor)?;
        Ok(compiled.into_values().next().unwrap_or_default())
    };
    // A C library falls back to clone(2), whose flags can be looked at, where there is no clone3(2).
    let old_clone = known(json!({
        "mismatch_action": "allow",
        "match_action": { "errno": ENOSYS },
        "filter": [{ "syscall": "clone3" }],
    }))?;
    let list = known(json!({
        "mismatch_action": { "errno": EPERM },
        "match_action": "allow",
        "filter": allowed(needs),
    }))?;
    // Of several that refuse a call, any is heard; the list comes last, as it has no room for another.
    apply_filter_all_threads(&old_clone)?;
    apply_filter_all_threads(&list)?;
    Ok(())
}

fn allowed(needs: &Needs) -> Vec<Value> {
    let lists = [PROCESS, FILES, ACCEPTED];
    let more = [(needs.connects, MADE), (!needs.changes.is_empty(), CHANGES)];
    let more = more.into_iter().filter(|(is_needed, _)| *is_needed).map(|(_, list)| list);
    let names = lists.into_iter().chain(more).flatten();
    let mut allowed: Vec<_> = names.map(|name| json!({ "syscall": name })).collect();
    let dword =
        |index: u8, op: Value, value: u64| json!({ "index": index, "type": "dword", "op": op, "val": value });
    let only = |name: &str, argument: Value| json!({ "syscall": name, "args": [argument] });
    let equal = |index: u8, value: u64| dword(index, json!("eq"), value);
    let threads = json!({ "masked_eq": CLONE_THREAD | CLONE_NAMESPACES });
    allowed.extend([
        json!({ "syscall": "clone3" }),
        only("clone", dword(0, threads, CLONE_THREAD)),
        only("prctl", equal(0, PR_SET_NAME)),
        only("tgkill", equal(0, u64::from(std::process::id()))),
    ]);
    allowed.extend(OF_ITSELF.map(|(name, index)| only(name, equal(index, 0))));
    allowed.extend(IOCTLS.map(|command| only("ioctl", equal(1, command.into()))));
    allowed
}
