//! A simulated network, its clock and the server's side, all in one thread, so that a seed reproduces a run.
//!
//! [`Network`] carries streams, which it splits, delays and resets, and datagrams, which it loses, duplicates
//! and reorders. [`Conditions`] set the constant rates; a [`Fault`] happens once. Time advances only when the
//! test processes the next event ([`Network::step`]). [`ServerSide`] has a real RPC service answer calls.
//!
//! Non-goals: the workload of a run and its invariants, which are in `tests/simulation`.
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
