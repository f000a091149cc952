//! Layers: each is a file-system waist over another one, and adds one thing. They stack in any order.
//!
//! - [`stats`] counts operations and their times.
//! - [`delay`] answers everything later, after a time: the pending path, on purpose.
//! - [`fault`] injects errors and short transfers by a plan.
//! - [`handle_table`] gives persistent handles to file systems that have none.
//! - [`readonly`] refuses every change.
//! - [`replies`] performs each request once, however often it is sent.
//!
//! Layers do not know each other. Those that treat all operations alike (`stats`, `fault`, `readonly`) are written as one
//! function around any operation: [`Around`], which [`Layered`] applies to the whole waist. What passes through answers
//! inline and allocates nothing when the layer below does (`tests/inline.rs`).
//!
//! Reading order: [`Op`], [`around`], then any layer.
#![forbid(unsafe_code)]

pub mod around;
pub mod delay;
pub mod fault;
pub mod handle_table;
mod op;
pub mod readonly;
pub mod replies;
pub mod stats;

pub use around::{Around, Layered};
pub use op::Op;
