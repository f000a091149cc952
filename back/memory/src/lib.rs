//! A complete in-memory file system on the waist: the **reference model** that other back ends are compared
//! with, and a scratch export.
//!
//! Simple before fast: one lock around the whole tree, so that every operation is one step that others see
//! entirely or not at all. It answers everything at once; only a lock that must wait for another answers
//! later.
//!
//! Not here: contents that outlive the process, quotas per user, device I/O (device nodes, fifos and sockets
//! can be made and listed, not opened).
//!
//! - [`Memory`]: the export. [`Options`]: its limits.
//! - [`MemoryDisk`]: the same of the block waist, a disk.
//!
//! Reading order: `directory`, `content` and `node`, `tree` (nodes and their life), `session` (one client's
//! view), then one file in `session/` for each group of operations; `disk` needs `content` alone; `acl` is
//! rules without state of its own.
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
