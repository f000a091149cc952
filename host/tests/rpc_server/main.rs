//! The RPC server over real sockets: records in any shape, limits, misbehaving clients, shutdown.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "tests say what they skip")]

mod admission;
mod binding;
mod common;
mod crowds;
mod datagrams;
mod endings;
mod limits;
mod records;
mod storms;
mod untaken;
