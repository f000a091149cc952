//! The client side of ONC RPC over TCP and UDP (RFC 5531): many calls outstanding, one thread that receives.
//!
//! A caller's thread encodes its call and sends it at once, file data from where they lie. One receiver thread for each
//! client takes all replies that a wake-up finds, receives file data straight where they belong, and then wakes those who wait.
//! The state of every call is explicit, in a table by transaction id. What the server does not answer is sent again: over UDP
//! by round-trip estimates, over TCP by connecting anew and sending what is outstanding once more, with the same id.
//!
//! The [`Engine`] knows sockets, the clock and chance by the traits of [`Wire`] only, and does nothing by itself: a simulation
//! can turn it in one thread, and get the same each time.
//!
//! Over a link in shared memory there is no engine: see `linked`.
//!
//! Not here: what procedures mean, who retries an operation that failed, TLS, RPCSEC_GSS.
//!
//! Main types: [`RpcClient`], [`Call`], [`Pending`], [`Reply`], [`CallError`], [`Options`]; [`Engine`], [`Wire`], [`Socket`].
//!
//! Reading order: `client`, `state` and `entry`; `sending`, `connection` and `batch` for what goes out; `engine`, `reader` and
//! `reply` for what comes in; `watch` for the clock; `limit` and `round_trip`.

mod adaptive_limit;
mod batch;
mod call;
mod call_entry;
mod client;
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
mod receiver;
mod reconnect;
mod reply;
mod reply_reader;
mod round_trip;
mod sending;
mod shared;
mod state;
mod system_wire;
mod timers;
mod wire;

pub use call::{Call, DataLocation, FindData, ReceiveBuffer, Reply};
pub use client::RpcClient;
pub use counters::Counts;
pub use engine::Engine;
pub use error::{CallError, Callee, Garbage};
pub use options::{InFlight, Interrupts, Options, Recovery, Target, Transport};
pub use pending::Pending;
pub use permit::NextPermit;
pub use timers::Sleep;
pub use wire::{Event, Socket, SocketToken, Wire};
