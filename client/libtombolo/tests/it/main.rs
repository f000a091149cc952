//! Tests that may share a process.

mod cached;
mod common;
mod copying;
mod deep;
mod disks;
mod interrupted;
mod paths;
mod streams;
