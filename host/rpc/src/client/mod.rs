//! The client side of ONC RPC over TCP and UDP (RFC 5531): many calls outstanding, one thread that receives.
//!
//! A caller's thread encodes its call and sends it at once, file data from where they lie. One receiver
//! thread for each client takes all replies that a wake-up finds, receives file data straight into their
//! buffers, and then wakes the waiters. The state of every call is explicit, in a table by transaction id.
//! What the server does not answer is sent again: over UDP by round-trip estimates, over TCP by reconnecting
//! and sending what is outstanding once more, with the same id.
//!
//! The [`Engine`] knows sockets, the clock and chance by the traits of [`Wire`] only, and does nothing by
//! itself: a simulation can turn it in one thread, and get the same each time.
//!
//! A connection may be a program's standard input and output (`tunnel`).
//!
//! Over a link in shared memory there is no engine: see `link_call`.
//!
//! Not here: what procedures mean, retries of failed operations, TLS itself (`host/tls`), RPCSEC_GSS.
//!
//! Main types: [`RpcClient`], [`Call`], [`Pending`], [`Reply`], [`CallError`], [`Options`]; [`Engine`],
//! [`Wire`], [`Socket`].
//!
//! Reading order: `rpc_client`, `state` and `call_entry`; `sending`, `connection` and `batch` for what goes
//! out; `engine`, `reply_reader` and `reply` for what comes in; `reconnect` for time-outs and connections,
//! `probe` for lines that were cut; `limit` and `round_trip`; `secure_socket`; `tunnel`.

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
pub use error::{CallError, Callee, Fault, Garbage};
pub use options::{InFlight, Interrupts, Options, Recovery, Target, Transport};
pub use pending::Pending;
pub use permit::NextPermit;
pub use rpc_client::RpcClient;
pub use timers::Sleep;
pub use tunnel::{Tunnel, TunnelFault};
pub use wire::{Event, Socket, SocketToken, Wire};
