//! Safe wrappers of the system calls that Tombolo makes.
//!
//! Front ends, layers, back ends and the programs name neither `libc` nor `rustix`. Most wrappers take
//! `BorrowedFd`, return `OwnedFd` or a plain structure, and fail with [`Errno`]. They contain no policy, and
//! no retry except for EINTR and for temporary failures of the kernel, each with its reason.
//!
//! Non-goals: wrappers without a caller, and memory that others may change (`tombolo-mem`).
//!
//! Reading order: [`open`] and [`stat`], then [`rw`], [`namespace`] and [`change`], then the others as
//! needed.

pub mod access;
pub mod affinity;
pub mod boot_time;
pub mod caller;
pub mod change;
pub mod creds;
pub mod cycles;
pub mod dir;
pub mod direct;
pub mod epoll;
pub mod errno;
pub mod fanotify;
pub mod fuse_dev;
pub mod futex;
pub mod gather;
pub mod handle;
pub mod lock;
pub mod memfd;
pub mod moment;
pub mod mountinfo;
pub mod mounts;
pub mod namespace;
pub mod open;
pub mod packet;
pub mod page_cache;
pub mod pattern;
pub mod probe;
pub mod process;
pub mod random;
pub mod ranges;
pub mod ring;
pub mod rw;
pub mod scheduling;
pub mod socket;
pub mod stat;
pub mod statfs;
pub mod stream;
pub mod sync;
pub mod tcp;
pub mod terminal;
pub mod thread;
pub mod thread_timer;
pub mod trace;
pub mod tun;
pub mod udp;
pub mod umask;
pub mod xattr;

pub use errno::{Errno, Result};
