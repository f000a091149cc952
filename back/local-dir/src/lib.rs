//! A directory of the host, as a file system of the waist.
//!
//! [`LocalDir`] is the export; each session that attaches gets node references of its own. It holds on to
//! files, not to names: a node survives renames and other names of its file, also those made by others, and
//! it never follows a link: names are single components, resolved beneath descriptors that it holds. A
//! directory that the host moves out of the export stays what it was for sessions that hold it, as an open
//! directory does to a process. What is held is busy: the host cannot unmount what lies inside while a
//! session knows nodes there.
//!
//! **Descriptors.** A node that was used lately has one (`O_PATH`), at most [`Options::descriptors`] in all;
//! others are found again by their file handle. Each opening has one, and each owner of record locks on a
//! file. **Threads.** What cannot block is done at once: attributes of an open node, reads from memory.
//! Names, small writes and small removals are done at once too on local file systems, for as long as that
//! proves quick ([`Pace`](tombolo_host_runtime::pace::Pace)); the rest goes to a pool. **Permissions** are
//! checked by one party, see `checks` in [`Client`]. `Caller`: nothing is checked here, only new files get
//! the caller as their owner. `BackEnd`: the host's kernel checks, for the identity of each request.
//!
//! **What is lost without root.** Everything is done and owned as the user that the server runs as, for all
//! callers, and the host's kernel checks for that user; between users, callers must check (the profile says
//! so). Without CAP_DAC_READ_SEARCH (and on file systems without handles) a node without a descriptor is
//! found again by the name under which it was met: if the host renamed or replaced it meanwhile, it is stale,
//! and there are no persistent handles.
//!
//! [`Client`]: tombolo_core::fs::Client
//!
//! Not here: caching of data or attributes, id mapping, squashing (layers), signing of handles (front ends).
//!
//! Reading order: [`options`], `state`, `export`, `session`; `table` and `descriptors` (nodes and where they
//! are); then one file per group of operations.
#![forbid(unsafe_code)]

mod acting;
mod attr;
mod attributes;
mod changes;
mod descriptors;
mod export;
mod files;
mod handles;
mod held_elsewhere;
mod host_watch;
mod listing;
mod locks;
mod mounts;
mod names;
mod neighbours;
mod opening;
pub mod options;
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
