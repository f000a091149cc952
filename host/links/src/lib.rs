//! Links over shared memory: how they are asked for, made and ended, and requests over them.
//!
//! [`server`] answers the requests of links, with one thread each; [`client`] sends them, from any number of
//! threads, and mostly without another thread between a caller and its answer. Both run over any pair of ends
//! ([`Ends`](tombolo_shm::link::Ends)), and both treat the other side as hostile: whatever breaks the rules
//! ends the link ([`ProtocolError`]), and nothing else.
//!
//! Between processes a link is asked for at a socket: [`listen`] and [`connect`] make it, [`policy`] holds
//! the rules of access, and [`control_socket`] watches the socket afterwards; its end is the other side's.
//! [`registry`] lists the servers of a host.
//!
//! Where that is allowed, a client's memory is made known to further servers ([`forwarding`]), which copies
//! nothing.
//!
//! Between a guest and its host there is no socket: [`shared_memory`] maps the memory, [`rendezvous`] makes
//! links over it.
//!
//! Not here: what a request means, the layout of the shared memory (`tombolo_shm`), ONC RPC over links
//! (`host/rpc`).
//!
//! Main types: [`server::Server`], [`server::Session`], [`client::Line`], [`client::Call`],
//! [`listen::LinkListener`], [`connect::connect`].
//!
//! Reading order: `end`, [`server`], [`client`]; [`listen`], [`connect`], [`control_socket`], [`policy`];
//! [`forwarding`].
#![forbid(unsafe_code)]

mod changes;
pub mod client;
pub mod connect;
pub mod control_socket;
mod counter;
mod end;
pub mod forwarding;
mod heartbeat;
pub mod listen;
pub mod policy;
pub mod registry;
pub mod rendezvous;
pub mod server;
pub mod shared_memory;
mod welcome;

pub use end::{End, ProtocolError};
