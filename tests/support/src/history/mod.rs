//! Random operations on a file system, performed on two sides that must agree.
//!
//! - [`Step`]: an operation of one of several users, sampled by a [`Mix`] of shares.
//! - [`Machine`]: one side. Nodes and openings are named by their index in order of discovery, the same on
//!   both sides. [`Machine::applies`] selects the steps whose result the waist determines.
//! - [`tree`]: names, attributes and contents of a tree, for comparison.
//! - [`State`]: a tree before and after each [`Change`], for what power losses leave of it.
//! - [`run_sequences`]: tries many sequences, and reduces one that fails.
//!
//! The model is a parameter: memory, a directory of the host, or a memory that repeats a log.

mod machine;
mod seeds;
mod states;
mod step;
mod tree;

pub use machine::{Known, Machine, Nodes, Outcome, SILLY};
pub use seeds::{cases, run_sequences};
pub use states::{Change, Loss, State, bytes, difference};
pub use step::{Action, At, Mix, OWNERS, Step, USERS};
pub use tree::{Shown, tree};
