//! The NFS client against correct and faulty servers.
//!
//! [`server`] is a server that answers as a test's script says. [`wire`] is a simulated network, reproducible
//! from a seed. The tests are in `tests/`.
#![forbid(unsafe_code)]

pub mod linked;
pub mod mount;
pub mod server;
pub mod wire;
