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
    "sched_setaffinity",
    "sched_getattr",
    "sched_setattr",
    "getcpu",
    "membarrier",
    "nanosleep",
    "clock_nanosleep",
    "clock_gettime",
    "clock_getres",
    "gettimeofday",
    "getrandom",
    "prlimit64",
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
    "ioctl",
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
    "io_uring_enter",
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

/// The same of files in directories, in the name of other users.
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
    "open_by_handle_at",
    "umask",
    "fanotify_init",
    "fanotify_mark",
    "inotify_init1",
    "inotify_add_watch",
    "inotify_rm_watch",
    "setresuid",
    "setresgid",
    "setfsuid",
    "setfsgid",
    "setgroups",
    "getgroups",
    "capget",
    "capset",
    "syncfs",
];

/// Flags of clone(2), prctl(2) and tgkill(2): threads of this process and their names, and its own signals.
const CLONE_THREAD: u64 = 0x1_0000;
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
    allowed.extend([
        json!({ "syscall": "clone3" }),
        only("clone", dword(0, json!({ "masked_eq": CLONE_THREAD }), CLONE_THREAD)),
        only("prctl", dword(0, json!("eq"), PR_SET_NAME)),
        only("tgkill", dword(0, json!("eq"), u64::from(std::process::id()))),
    ]);
    allowed
}
