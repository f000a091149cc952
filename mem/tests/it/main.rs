//! The tests that may share a process.

mod shared;
mod vectors;
