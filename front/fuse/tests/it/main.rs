//! The tests that may share a process.

mod bad_blocks;
mod callers;
mod common;
mod handles;
mod keeping;
mod limits;
mod mount;
mod overlap;
mod virtio;
