//! NBD client: a disk of an NBD server. Any number of requests are in flight over one connection, which is
//! re-established when lost.
//!
//! A request is sent by the calling thread and answered by the disk's receiving thread. Requests pending when
//! the connection is lost are sent again: reads, writes, discards and zeroes are idempotent. Changes that the
//! server had acknowledged but not made durable may be lost, which the protocol cannot reveal, so the first
//! flush after the loss fails ([`Unflushed`](unflushed)), as it does on a disk that has lost writes.
//!
//! - [`NbdDisk`] is the disk; [`Address`] is its server's address.
//!
//! Reading order: `disk`, `connection`, `unflushed`, `handshake`.
#![forbid(unsafe_code)]

mod connection;
mod disk;
mod handshake;
mod unflushed;

pub use disk::{Address, NbdDisk};
pub use handshake::ConnectError;
