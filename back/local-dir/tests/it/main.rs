//! The tests that may share a process.

mod beneath;
mod callers;
mod changes;
mod common;
mod host_watch;
mod listing;
mod trouble;
mod volatile;
mod waiting;
