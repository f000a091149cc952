//! Links over shared memory: connection set-up and end, and requests over them.
//!
//! [`server`] answers the requests of links, with one thread each; [`client`] sends them from any number of
//! threads, mostly without another thread between a caller and its answer. Both run over the memory of both
//! sides ([`Ends`](tombolo_shm::link::Ends)), however it is shared, and treat the peer as hostile: a
//! violation ([`ProtocolError`]) ends the link, and has no other effect.
//!
//! Between processes a link is set up over a socket: [`listen`] and [`connect`] make the link, [`policy`]
//! controls access, and [`control_socket`] watches the socket afterwards, to notice the end of the peer's
//! process. [`registry`] lists the servers of a host.
//!
//! Where permitted, a client's memory is forwarded to further servers ([`forwarding`]), without copying.
//!
//! Between a guest and its host there is no socket: [`shared_memory`] maps the memory, [`rendezvous`] makes
//! links over it.
//!
//! Non-goals: the meaning of requests, the layout of the shared memory (`tombolo_shm`), ONC RPC over links
//! (`host/rpc`).
//!
//! Main types: [`server::Server`], [`server::Session`], [`client::Line`], [`client::Call`],
//! [`listen::LinkListener`], [`connect::connect`].
//!
//! Reading order: `end`, [`server`], [`client`]; [`listen`], [`connect`], [`control_socket`], [`policy`];
//! [`forwarding`].
#![forbid(unsafe_code)]

pub mod bell;
pub mod client;
mod client_hook;
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

pub use end::{EndReason, ProtocolError};
