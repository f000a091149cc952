//! A simulated wire: a network, its clock, and the server's side of it, all in one thread, so that a seed
//! gives the same run each time.
//!
//! [`Network`] carries streams, which it cuts, delays, resets and forgets, and datagrams, which it loses,
//! doubles and mixes up; how much of that goes on is its [`Conditions`], and what happens once is a
//! [`Fault`]. Time passes only when the test lets the next event happen ([`Network::step`]). [`ServerSide`]
//! has a real RPC service answer what arrives.
//!
//! Not here: what a run does and what has to hold in it. That is in `tests/simulation`.
//!
//! Reading order: `conditions`, `network`, `stream`, `datagrams`, `socket`, `server`.

mod conditions;
mod datagrams;
mod network;
mod rng;
mod server;
mod socket;
mod stream;
mod trace;

pub use conditions::{Conditions, Fault};
pub use network::{Happening, Network, Ready, Sleep, SocketId};
pub use rng::Rng;
pub use server::ServerSide;
pub use socket::ClientWire;
pub use stream::{End, noise};
