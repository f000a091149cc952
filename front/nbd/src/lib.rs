//! NBD server: disks by name over UNIX sockets and TCP, for QEMU, the kernel's client and libnbd.
//!
//! A thread per connection receives requests and calls the disk. Answers that are ready at once are sent by
//! that thread, a batch per system call; a pending one is sent by the thread that completes it, in any order.
//! No thread blocks on a client that does not receive its replies: they are queued, and the connection's
//! thread continues to send them.
//!
//! Limits per client: connections and memory. Limits per connection: requests under way, and time for the
//! handshake, for the remainder of a request that has begun, and in which the client receives no replies that
//! are queued for it.
//!
//! - [`Exports`] are the disks; [`Server`] serves them.
//!
//! Non-goals: the wire format (`wire/nbd`), disks (`core/src/block`).
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
