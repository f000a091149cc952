//! The NFS client against servers good and bad.
//!
//! [`server`] is a server that says what a test wants it to. [`wire`] is a network that a seed repeats. The
//! tests are in `tests/`.
#![forbid(unsafe_code)]

pub mod linked;
pub mod mount;
pub mod server;
pub mod wire;
