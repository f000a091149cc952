//! The RPC client against this crate's server, and against scripted ones.

mod calls;
pub mod common;
mod endings;
mod hostile;
mod limits;
mod recovery;
mod replays;
mod script;
mod storms;
