//! Small layers: each is a waist over another one, and adds one function. They stack in any order, also with
//! the layers that have crates of their own (`layer/replies`, `layer/handle-table`).
//!
//! - [`stats`] counts operations and their times, also those of disks ([`stats::disk`]).
//! - [`delay`] delays answers, to exercise the treatment of answers that are not immediate.
//! - [`fault`] injects errors and short transfers by a plan.
//! - [`readonly`] refuses every change.
//! - [`recall`] recalls the leases of clients before every change.
//! - [`record`] records which parts of a disk are read, in order.
//! - [`switch`] replaces a disk that is in use.
//!
//! `stats`, `delay` and `fault` also apply to disks.
//!
//! Layers are independent of each other. Layers that treat all operations alike (`stats`, `fault`,
//! `readonly`) are written as one function around any operation: [`Around`], which [`Layered`] applies to the
//! whole waist. Their answers are immediate, without allocation, if those of the wrapped waist are
//! (`tests/it/inline.rs`). A layer that defers calls stores their [`arguments`].
//!
//! Reading order: [`around`], then any layer.
#![forbid(unsafe_code)]

pub mod arguments;
pub mod around;
pub mod delay;
pub mod fault;
pub mod readonly;
pub mod recall;
pub mod record;
pub mod stats;
pub mod switch;

pub use around::{Around, Layered};
