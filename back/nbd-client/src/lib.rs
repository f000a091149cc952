//! A disk that an NBD server has: any number of requests under way over one connection, which is made anew
//! when it is lost.
//!
//! A request is sent by the thread that makes it, and answered by the thread that receives. What was under
//! way when the connection was lost is sent again: reads, writes, discards and zeroes have the same effect
//! twice. What the server had answered and not yet made durable it may have forgotten, and the protocol has
//! no way to tell: so the first flush after that fails ([`Unflushed`](unflushed)), as one on a disk that has
//! lost writes does.
//!
//! - [`NbdDisk`] is the disk; [`Address`] is where its server is.
//!
//! Reading order: `disk`, `connection`, `unflushed`, `handshake`.
#![forbid(unsafe_code)]

mod connection;
mod disk;
mod handshake;
mod unflushed;

pub use disk::{Address, NbdDisk};
pub use handshake::ConnectError;
