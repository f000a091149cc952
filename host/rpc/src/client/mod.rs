//! The client side of ONC RPC over TCP and UDP (RFC 5531): many outstanding calls, one receiver thread.
//!
//! The caller's thread encodes its call and, unless the call must wait, sends it at once, without TLS file
//! data without a copy. One receiver thread takes the available replies, up to a limit, receives most file
//! data of TCP straight into their buffers, and then wakes the waiters. A table indexed by transaction id
//! contains the state of every call over TCP or UDP. Unanswered calls are retransmitted with the same id:
//! over UDP by round-trip estimates, over TCP after a time-out or a reconnect. *Bulk* calls, those with
//! [`Call::bulk`], are limited in number; *bulk memory* is memory of a link for what does not fit in a frame.
//!
//! The [`Engine`] uses sockets, clock and random numbers only through the traits [`Wire`] and [`Socket`], and
//! acts only when called: a simulation can run it deterministically in one thread.
//!
//! A connection may be the standard input and output of a program (`tunnel`).
//!
//! Calls over a link in shared memory bypass the engine: see `link_call`.
//!
//! Non-goals: the meaning of procedures, retries of failed operations, TLS itself (`host/tls`), RPCSEC_GSS.
//!
//! Main types: [`RpcClient`], [`Call`], [`Pending`], [`Reply`], [`CallError`], [`Options`]; [`Engine`],
//! [`Wire`], [`Socket`].
//!
//! Reading order: `rpc_client`, `state` and `call_entry`; `sending`, `connection` and `batch` for sending;
//! `engine`, `reply_reader` and `reply` for receiving; `reconnect` for time-outs and connections, `probe` for
//! dead connections; `limit` and `round_trip`; `secure_socket`; `tunnel`.

mod adaptive_limit;
mod batch;
mod call;
mod call_entry;
mod connection;
mod counters;
mod engine;
mod error;
mod finished;
mod limit;
mod link_call;
mod low_water;
mod options;
mod pending;
mod permit;
mod probe;
mod receiver;
mod reconnect;
mod reply;
mod reply_reader;
mod round_trip;
mod rpc_client;
mod secure_socket;
mod sending;
mod shared;
mod state;
mod system_wire;
mod timers;
mod tunnel;
mod wire;

pub use call::{Call, DataLocation, FindData, ReceiveBuffer, Reply};
pub use counters::Counts;
pub use engine::Engine;
pub use error::{CallError, Callee, Fault, InvalidReply};
pub use options::{InFlight, Interrupts, Options, Recovery, Target, Transport};
pub use pending::Pending;
pub use permit::NextPermit;
pub use rpc_client::RpcClient;
pub use timers::Sleep;
pub use tunnel::{Tunnel, TunnelFault};
pub use wire::{Event, Socket, SocketToken, Wire};
