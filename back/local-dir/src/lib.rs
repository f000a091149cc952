//! A directory of the host as a file system of the waist.
//!
//! [`LocalDir`] is the export; each attached session has its own node references. A node refers to a file,
//! not to a name: it survives renames and other links of its file, also those by other processes. Symbolic
//! links are never followed: names are single components, resolved beneath open descriptors. A directory that
//! the host moves out of the export stays usable for sessions that have a node of it, like an open directory
//! of a process. The host cannot unmount a file system inside the export once a session has found files
//! there, because the export retains a descriptor on it.
//!
//! **Descriptors.** Recently used nodes have one (`O_PATH`), limited by [`Options::descriptors`]; others are
//! found again by their file handle, or by name. Each open file has one, and each owner of record locks on a
//! file. **Threads.** Operations that cannot block run on the calling thread: attributes of an open node on a
//! local file system, reads from the page cache. So do name operations, small writes and small removals on
//! local file systems while they are quick ([`Pace`](tombolo_host_runtime::pace::Pace)). Most others run in a
//! pool. **Permissions** are checked by one party, see `checks` in [`Client`]. `Caller`: this back end checks
//! nothing, but new files belong to the caller. `BackEnd`: the host's kernel checks with the identity of each
//! request.
//!
//! **Without root** the server's user does and owns everything, for all callers, and the host's kernel checks
//! permissions for that user; callers must check permissions between users (the profile says so). Without
//! CAP_DAC_READ_SEARCH, and on file systems without handles, a node without a descriptor is found again by
//! the name under which it was looked up: if the host has renamed or replaced it, it is stale, and there are
//! no persistent handles.
//!
//! [`Client`]: tombolo_core::fs::Client
//!
//! Non-goals: caching of data or attributes, id mapping, squashing (layers), signing of handles (front ends).
//!
//! Reading order: [`options`], `state`, `export`, `session`; `table` and `descriptors` (nodes and their
//! descriptors); then one file per group of operations.
#![forbid(unsafe_code)]

mod acting;
mod attr;
mod attributes;
mod changes;
mod descriptors;
mod export;
mod files;
mod handles;
mod host_watch;
mod inherited;
mod listing;
mod locks;
mod mounts;
mod names;
mod opening;
pub mod options;
mod overlapping;
mod ranges;
mod records;
mod session;
mod state;
mod submounts;
mod table;
mod transfer;
mod turns;
mod volatile;
mod waiting;
mod window;
mod xattrs;

pub use export::{LocalDir, OpenError};
pub use options::{Options, Submounts};
