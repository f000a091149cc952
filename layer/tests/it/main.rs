//! The tests that may share a process.

mod handle_table;
mod layers;
mod replies;
