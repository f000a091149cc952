//! An in-memory file system on the waist: the **reference model** for other back ends, and a scratch export.
//!
//! Simple rather than fast: one lock guards the whole tree, so every operation is atomic. All operations
//! complete immediately, except waits for locks and for change notifications.
//!
//! Non-goals: persistence, quotas per user, device I/O (device nodes, fifos and sockets can be created and
//! listed, but not opened).
//!
//! - [`Memory`]: the export. [`Options`]: its limits.
//! - [`MemoryDisk`]: a disk, the reference model for block devices.
//!
//! Reading order: `directory`, `content` and `node`, `tree` (nodes and their lifetime), `session` (one
//! client's view), then one file in `session/` for each group of operations; `disk` depends only on
//! `content`; `acl` is stateless.
#![forbid(unsafe_code)]

mod acl;
mod change_log;
mod content;
mod directory;
mod disk;
mod export;
mod node;
mod options;
mod session;
mod tree;

pub use disk::MemoryDisk;
pub use export::Memory;
pub use options::Options;
