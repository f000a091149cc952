//! File data: what was written and is not on the server's stable storage yet, and what was read ahead.
//!
//! A write is sent at once and answered at once: the bytes are held, in the writer's own memory where that is
//! retainable, else in one copy, until a COMMIT says that the server has them for good. A read goes straight
//! into the reader's memory; only what was read ahead is copied. It has no thread: the thread that receives a
//! reply runs the tasks that waited for it.
//!
//! What always holds, and is tested against a server that reorders, fails and restarts (`model`):
//! 1. Two WRITEs of one file that share a byte are never outstanding together. The later one waits, or takes
//!    the earlier one's place if that has not left.
//! 2. What was answered as written is held until the server has it on stable storage, or its loss is
//!    reported. The loss is reported to the next write, flush or sync, and to all that were waiting then,
//!    once.
//! 3. A flush that succeeds has on stable storage, byte for byte, what was written before it or something
//!    newer, or what is missing was reported before. That is so also when the server restarts between any two
//!    calls (RFC 1813 §4.8).
//! 4. A read sees what was written before it, also where the server has lost it since and does not know yet
//!    that it will get it again. It sees nothing that was never written, or was cut off.
//! 5. Nothing is read ahead over bytes that are on their way to the server; what was read ahead is dropped
//!    where something is written, cut off or lost.
//! 6. Memory is bounded: written bytes by the mount's budget, what is read ahead by opening and by mount. A
//!    writer that waits for memory gets it, for uncommitted data get a COMMIT then.
//! 7. No lock is held while a task is woken or a call made.
//!
//! - [`write`], [`append`], [`read`], [`settle`], [`commit`], [`pause`] are what the rest of the client
//!   calls.
//! - [`Server`] is what they call; [`Budget`] is what all files of a mount share, [`FileData`] what one file
//!   has, [`ReadAhead`] what one opening has.
//!
//! Not here: where an opening that appends really writes when others append on other machines, attributes,
//! handles that are lost.
//!
//! Reading order: `dirty_ranges` (what becomes of written bytes, without I/O), `sending`, `committing`,
//! `writing`, `read_sequence` and `read_ahead` (when to read ahead, without I/O), `reading`; the rest as
//! needed. Decisions 0140 to 0142.

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
pub(crate) use writing::{append, write};
