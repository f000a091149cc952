//! Links over shared memory: who may have one, how they are made, and requests over them.
//!
//! [`server`] answers the requests of links, with one thread each; [`client`] sends them, from any number of threads, and
//! mostly without another thread between a caller and its answer. Both run over any pair of ends
//! ([`Ends`](tombolo_shm::link::Ends)), and both treat the other side as hostile: whatever breaks the rules ends the link ([`Lie`]), and
//! nothing else.
//!
//! Between processes a link is asked for at a socket: [`listen`] and [`connect`] make it, [`policy`] says who may, and
//! [`tether`] watches the socket afterwards, whose end is the other side's. [`registry`] lists who offers what.
//!
//! What lies in the memory of a client is named to further servers where that is allowed ([`passing`]), and not copied.
//!
//! Between a guest and its host there is no socket: [`memory`] finds what they have in common, [`seated`] makes links over it.
//!
//! Not here: what a request means, what lies where in the shared memory (`tombolo_shm`), ONC RPC over links (`host/rpc`).
//!
//! Main types: [`server::Server`], [`server::Session`], [`client::Line`], [`client::Call`], [`listen::LinkListener`], [`connect::connect`].
//!
//! Reading order: `end`, [`server`], [`client`]; [`listen`], [`connect`], [`tether`], [`policy`]; [`passing`].
#![forbid(unsafe_code)]

mod changes;
pub mod client;
pub mod connect;
mod counter;
mod end;
mod heart;
pub mod listen;
pub mod memory;
pub mod passing;
pub mod policy;
pub mod registry;
pub mod seated;
pub mod server;
pub mod tether;
mod welcome;

pub use end::{End, Lie};
