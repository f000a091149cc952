//! Operations on whole disks: allocation, resumable copies, comparison, and a search for unreadable blocks.
//!
//! Copies, comparisons and searches walk a disk in pieces, with many of them in flight, and do not read what
//! is known to be zero.
//!
//! Main types: [`Copy`], [`Room`], [`Unreadable`]. Reading order: `pieces`, `transfer` (one piece), `walk`
//! (many), `copy`.

mod compare;
mod copy;
mod fault;
mod pieces;
mod room;
mod tally;
mod transfer;
mod unreadable;
mod walk;

pub use compare::compare;
pub use copy::{Copy, Ended};
pub use fault::{Fault, Step};
pub use room::Room;
pub use tally::{Tally, Watched};
pub use unreadable::{Unreadable, unreadable};
