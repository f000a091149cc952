//! System-call filter by seccomp(2): an allow list. Other calls fail with ENOSYS, as in a kernel without
//! them, so that libraries fall back.

use std::collections::HashMap;
use std::env::consts::ARCH;

use seccompiler::{BackendError, BpfProgram, TargetArch, apply_filter_all_threads, compile_from_json};
use serde_json::{Value, json};
use thiserror::Error as ThisError;

use super::Needs;

/// Error of installing the filter.
#[derive(Debug, ThisError)]
pub enum CallsError {
    /// There is no list for this processor architecture.
    #[error("no list for this processor architecture")]
    Processor(#[from] BackendError),
    /// The list is invalid, or the kernel rejects it.
    #[error("the kernel rejected the list")]
    List(#[from] seccompiler::Error),
}

const ENOSYS: u32 = 38;

/// Memory, threads, time and waiting.
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
    "ppoll",
    "pselect6",
    "epoll_create1",
    "epoll_ctl",
    "epoll_pwait",
    "epoll_pwait2",
    "eventfd2",
    "timerfd_create",
    "timerfd_settime",
    "timerfd_gettime",
    "pipe2",
    "dup",
    "dup3",
    "close",
    "close_range",
    "memfd_create",
    "msync",
    "mincore",
    "getppid",
    "setsid",
    "chdir",
    "getresuid",
    "getresgid",
    "getgroups",
    "capget",
    "times",
    "rt_sigpending",
    "rt_sigsuspend",
    "sched_getscheduler",
    "sched_getparam",
];

/// Use of open files, and of the files that landlock lets the process open.
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
    "newfstatat",
    "statx",
    "statfs",
    "fstatfs",
    "faccessat",
    "faccessat2",
    "readlinkat",
    "getcwd",
    "openat",
    "openat2",
    "getdents64",
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
    "sendfile",
    "readahead",
];

/// Older equivalents of [`PROCESS`] and [`FILES`], on x86 only.
const OLDER: &[&str] = &[
    "dup2",
    "pipe",
    "poll",
    "select",
    "pause",
    "eventfd",
    "epoll_create",
    "epoll_wait",
    "getrlimit",
    "getpgrp",
    "stat",
    "lstat",
    "access",
    "readlink",
    "open",
    "creat",
    "unlink",
];
/// Accepted connections.
const ACCEPTED: &[&str] = &[
    "accept",
    "accept4",
    "recvfrom",
    "recvmsg",
    "recvmmsg",
    "shutdown",
    "getsockopt",
    "setsockopt",
    "getsockname",
    "getpeername",
];

/// Outgoing connections.
const OUTGOING: &[&str] = &["socket", "connect", "bind"];

/// Listening on further sockets. Creating these also takes [`OUTGOING`]: a socket on which another process
/// listens is detected by connecting.
const LISTENING: &[&str] = &["listen"];

/// Use of an existing io_uring; none can be created.
const RING: &[&str] = &["io_uring_enter"];

/// Changes of directories' entries and of open files' attributes, and file handles. umask(2) is allowed too,
/// because it cannot fail in C and callers do not handle an error.
const CHANGES: &[&str] = &[
    "mkdirat",
    "mknodat",
    "linkat",
    "symlinkat",
    "renameat2",
    "renameat",
    "fchmod",
    "fchown",
    "fgetxattr",
    "fsetxattr",
    "flistxattr",
    "fremovexattr",
    "name_to_handle_at",
    "open_by_handle_at",
    "umask",
    "syncfs",
];

const OLDER_CHANGES: &[&str] = &["mkdir", "mknod", "rmdir", "link", "symlink", "rename"];

/// Changes of attributes by name. Landlock does not check these calls, so they reach files anywhere. They are
/// allowed only for [`Needs::serves_users`], where they are indispensable.
const ATTRIBUTES_BY_NAME: &[&str] = &[
    "fchmodat",
    "fchmodat2",
    "fchownat",
    "utimensat",
    "getxattr",
    "lgetxattr",
    "setxattr",
    "lsetxattr",
    "listxattr",
    "llistxattr",
    "removexattr",
    "lremovexattr",
    "truncate",
];

const OLDER_ATTRIBUTES_BY_NAME: &[&str] = &["chmod", "chown", "lchown", "utime", "utimes", "futimesat"];

/// Access as other users, and notifications of others' changes.
const USER_ACCESS: &[&str] = &["setresuid", "setresgid", "setgroups", "capset", "fanotify_mark"];

/// Allowed ioctl(2) requests: descriptor flags, readable bytes, terminal type and size, a device's size and
/// its file system's UUID. Other requests could inject input into the controlling terminal (TIOCSTI), or
/// control a device.
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

/// Allowed ioctl(2) requests of mounts: further descriptors of a connection (FUSE_DEV_IOC_CLONE) and backing
/// files (BACKING_OPEN, BACKING_CLOSE).
const IOCTLS_OF_MOUNTS: [u32; 3] = [0x8004_e500, 0x4010_e501, 0x4004_e502];

/// Calls allowed on the calling process only, with the position of the process or thread argument; 0 means
/// the caller.
const SELF_ONLY: [(&str, u8); 3] = [("prlimit64", 0), ("sched_setaffinity", 0), ("sched_setattr", 0)];

/// Allowed prctl(2) options: PR_SET_NAME, PR_GET_NAME and PR_CAPBSET_READ.
const PRCTLS: [u64; 3] = [15, 16, 23];

/// clone(2) flag of threads; new namespaces are not allowed.
const CLONE_THREAD: u64 = 0x1_0000;
/// CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
const CLONE_NAMESPACES: u64 = 0x2_0000 | 0x200_0000 | 0x7c00_0000;
const CLONE_FS: u64 = 0x200;
/// fanotify_init(2) flags: events identify files by handle instead of opening them, and none waits for a
/// response.
const FAN_REPORT_FID: u64 = 0x200;
const FAN_CLASSES: u64 = 0xc;
/// Sending calls with the position of their flags, and the flag that connects first (MSG_FASTOPEN): landlock
/// checks only connect(2).
const SENDING: [(&str, u8); 3] = [("sendto", 3), ("sendmsg", 2), ("sendmmsg", 3)];
const MSG_FASTOPEN: u64 = 0x2000_0000;
/// Socket pairs that cannot send elsewhere: SOCK_STREAM and SOCK_SEQPACKET. A datagram socket can send to any
/// socket of the host.
const PAIRS: [u64; 2] = [1, 5];
const SOCKET_KINDS: u64 = 0xf;
/// Refused fcntl(2) commands: signals to other processes or of other kinds (F_SETOWN, F_SETSIG, F_SETOWN_EX),
/// and directory notifications (F_NOTIFY).
const REFUSED_FCNTLS: [u64; 4] = [8, 10, 15, 1026];

pub(super) fn confine(needs: &Needs) -> Result<(), CallsError> {
    Ok(apply_filter_all_threads(&program(needs, TargetArch::try_from(ARCH)?)?)?)
}

fn program(needs: &Needs, processor: TargetArch) -> Result<BpfProgram, CallsError> {
    let list = json!({ "server": {
        "mismatch_action": { "errno": ENOSYS },
        "match_action": "allow",
        "filter": allowed(needs, processor),
    }});
    let compiled: HashMap<_, _> = compile_from_json(list.to_string().as_bytes(), processor)?;
    Ok(compiled.into_values().next().unwrap_or_default())
}

fn allowed(needs: &Needs, processor: TargetArch) -> Vec<Value> {
    let lists = [PROCESS, FILES, ACCEPTED];
    let (makes_sockets, is_x86) = (!needs.listens_in.is_empty(), matches!(processor, TargetArch::x86_64));
    let changes = needs.serves_users || !needs.changes.is_empty();
    let more = [
        (needs.connects || makes_sockets, OUTGOING),
        (is_x86, OLDER),
        (is_x86 && changes, OLDER_CHANGES),
        (needs.listens || makes_sockets, LISTENING),
        (needs.has_ring, RING),
        (changes, CHANGES),
        (needs.serves_users, USER_ACCESS),
        (needs.serves_users, ATTRIBUTES_BY_NAME),
        (is_x86 && needs.serves_users, OLDER_ATTRIBUTES_BY_NAME),
    ];
    let more = more.into_iter().filter(|(is_needed, _)| *is_needed).map(|(_, list)| list);
    let names = lists.into_iter().chain(more).flatten();
    let mut allowed: Vec<_> = names.map(|name| json!({ "syscall": name })).collect();
    let dword =
        |index: u8, op: Value, value: u64| json!({ "index": index, "type": "dword", "op": op, "val": value });
    let only = |name: &str, argument: Value| json!({ "syscall": name, "args": [argument] });
    let equal = |index: u8, value: u64| dword(index, json!("eq"), value);
    let threads = json!({ "masked_eq": CLONE_THREAD | CLONE_NAMESPACES });
    allowed.extend([
        only("clone", dword(0, threads, CLONE_THREAD)),
        only("tgkill", equal(0, u64::from(std::process::id()))),
    ]);
    if changes {
        // unshare(CLONE_FS) gives a thread a umask of its own.
        allowed.push(only("unshare", equal(0, CLONE_FS)));
    }
    let does_not_connect = json!({ "masked_eq": MSG_FASTOPEN });
    allowed.extend(SENDING.map(|(name, index)| only(name, dword(index, does_not_connect.clone(), 0))));
    let kind = json!({ "masked_eq": SOCKET_KINDS });
    allowed.extend(PAIRS.map(|value| only("socketpair", dword(1, kind.clone(), value))));
    let others = REFUSED_FCNTLS.map(|command| dword(1, json!("ne"), command));
    allowed.push(json!({ "syscall": "fcntl", "args": others }));
    if changes && !needs.serves_users {
        // Attributes of an open file, without a name.
        let no_name = json!({ "index": 1, "type": "qword", "op": "eq", "val": 0 });
        allowed.push(only("utimensat", no_name));
    }
    if needs.serves_users {
        let kinds = json!({ "masked_eq": FAN_REPORT_FID | FAN_CLASSES });
        allowed.push(only("fanotify_init", dword(0, kinds, FAN_REPORT_FID)));
    }
    allowed.extend(SELF_ONLY.map(|(name, index)| only(name, equal(index, 0))));
    allowed.extend(PRCTLS.map(|option| only("prctl", equal(0, option))));
    let of_mounts = if needs.serves_mounts { &IOCTLS_OF_MOUNTS[..] } else { &[] };
    let commands = IOCTLS.iter().chain(of_mounts);
    allowed.extend(commands.map(|command| only("ioctl", equal(1, u64::from(*command)))));
    allowed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_processor_has_a_list() {
        let all = Needs {
            changes: vec!["/".into()],
            listens_in: vec!["/".into()],
            listens: true,
            connects: true,
            has_ring: true,
            serves_users: true,
            serves_mounts: true,
            ..Needs::default()
        };
        for processor in [TargetArch::x86_64, TargetArch::aarch64] {
            assert!(!program(&all, processor).expect("all calls are known").is_empty());
        }
    }
}
