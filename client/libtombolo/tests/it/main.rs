//! The tests that may share a process.

mod cached;
mod common;
mod copying;
mod deep;
mod interrupted;
mod paths;
mod streams;
