//! The tests that may share a process.

mod canonical;
mod common;
mod recorded;
mod round_trip;
