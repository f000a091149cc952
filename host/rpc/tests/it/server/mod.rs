//! The RPC server over sockets: records in any shape, limits, misbehaving clients, shutdown.

mod admission;
mod binding;
pub mod common;
mod crowds;
mod datagrams;
mod endings;
mod limits;
mod records;
mod storms;
mod untaken;
