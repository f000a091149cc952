//! An NBD server: disks by name, over unix sockets and TCP, for QEMU, the kernel's client and libnbd.
//!
//! A thread per connection receives requests and calls the disk. What the disk has at hand is answered by
//! that thread, a batch of requests in one system call; what pends is answered by the thread that finishes
//! it, in whatever order. Neither waits for a client that does not take its replies: they stay in a queue,
//! and the connection's thread goes on with it.
//!
//! What a client can take is bounded: connections for each client and for all, requests under way, memory,
//! the time for its handshake and for the rest of a request that it has begun.
//!
//! - [`Exports`] are the disks; [`Server`] serves them.
//!
//! Not here: the protocol's bytes (`wire/nbd`), what a disk does (`core/src/block`).
//!
//! Reading order: `server`, `connection`, `handshake`, `transmission`, `replies`.
#![forbid(unsafe_code)]

mod clients;
mod connection;
mod exports;
mod handshake;
mod memory;
mod replies;
mod server;
mod transmission;

pub use exports::Exports;
pub use server::{Listeners, Options, Server, StartError};
