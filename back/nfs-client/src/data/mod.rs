//! File data: written data not yet on the server's stable storage, and read-ahead.
//!
//! An unstable write is answered once it is sent or queued: the bytes are retained, in the writer's own
//! memory if that is retainable, otherwise in one copy, until a COMMIT confirms that they are stable. A read
//! goes directly into the reader's memory; only read-ahead and uncommitted writes are copied. There is no
//! thread: the thread that receives a reply runs the tasks that waited for it.
//!
//! Invariants, tested against a server that reorders, fails and restarts (`model`):
//! 1. Two WRITEs of one file that share a byte are never outstanding together. The later one waits, or
//!    replaces the earlier one if that has not been sent.
//! 2. Data answered as written are retained until they are on stable storage, overwritten or truncated, or
//!    until their WRITE or COMMIT fails. The failure is reported once, to the next write, flush or sync, and
//!    to all that were waiting when it occurred.
//! 3. After a successful flush, every byte written before it, or a newer one, is on stable storage, unless
//!    its loss was reported before. This holds even if the server restarts between any two calls (RFC 1813
//!    §4.8).
//! 4. A read sees everything written before it, even if the server has lost it since and it is not yet
//!    resent. It sees nothing that was never written, or was truncated.
//! 5. Bytes being sent to the server are not read ahead; read-ahead is dropped where data are written,
//!    truncated or lost.
//! 6. Memory is bounded: written bytes by the mount's budget, read-ahead by opening and by mount. A writer
//!    that waits for memory gets it, as uncommitted data are then committed.
//! 7. No lock is held while a task is woken or a call made.
//!
//! - [`write`], [`read`], [`settle`], [`commit`], [`pause`] are the interface to the client.
//! - [`Server`] is the interface required from the client; [`Budget`] is the state of a mount, [`FileData`]
//!   that of one file, [`ReadAhead`] that of one opening.
//!
//! Non-goals: the offset of appends while other machines append, attributes, lost handles.
//!
//! Reading order: `dirty_ranges` (states of written bytes, without I/O), `sending`, `committing`, `writing`,
//! `read_sequence` and `read_ahead` (read-ahead policy, without I/O), `reading`; the others as needed.
//!
//! Decisions: `docs/decisions/nfs-client-changes.md`, `docs/decisions/nfs-client-coherence.md`.

mod allowance;
mod budget;
mod committing;
mod copy_of_error;
mod dirty_ranges;
mod file;
mod losses;
mod memory;
mod piece;
mod read_ahead;
mod read_sequence;
mod reading;
mod sending;
mod server;
mod started_call;
mod writing;

#[cfg(test)]
mod dirty_ranges_tests;
#[cfg(test)]
mod model;

pub(crate) use budget::Budget;
pub(crate) use committing::{commit, pause, settle};
pub(crate) use file::{FileData, unless_interrupted};
pub(crate) use piece::Wrote;
pub(crate) use reading::{ReadAhead, read};
pub(crate) use server::{Server, Sizes};
pub(crate) use writing::write;
