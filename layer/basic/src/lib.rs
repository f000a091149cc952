//! Small layers: each is a file-system waist over another one, and adds one thing. They stack in any order,
//! also with those that have a room of their own (`layer/replies`, `layer/handle-table`).
//!
//! - [`stats`] counts operations and their times, also those of disks ([`stats::disk`]).
//! - [`delay`] answers everything later, after a time: the pending path, on purpose.
//! - [`fault`] injects errors and short transfers by a plan.
//! - [`readonly`] refuses every change.
//! - [`recall`] recalls the leases of clients before every change.
//! - [`record`] writes down what is read of a disk, in order.
//! - [`switch`] puts another disk behind one that is in use.
//!
//! `stats`, `delay` and `fault` are also for disks.
//!
//! Layers do not know each other. Those that treat all operations alike (`stats`, `fault`, `readonly`) are
//! written as one function around any operation: [`Around`], which [`Layered`] applies to the whole waist.
//! What passes through answers inline and allocates nothing when the layer below does (`tests/inline.rs`).
//!
//! Reading order: [`around`], then any layer.
#![forbid(unsafe_code)]

mod arguments;
pub mod around;
pub mod delay;
pub mod fault;
pub mod readonly;
pub mod recall;
pub mod record;
pub mod stats;
pub mod switch;

pub use around::{Around, Layered};
