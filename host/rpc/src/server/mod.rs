//! The server side of ONC RPC over TCP and UDP (RFC 5531 §11): calls in, replies out.
//!
//! A call is bytes here. What they mean (headers, authentication, procedures) is the business of a
//! [`Service`].
//!
//! A few event threads ([`Options::threads`]) wait for calls, each for those of its own connections. They
//! look for a while before they sleep. What a service answers at once is sent with the other replies of the
//! same turn; what it answers later is sent by the thread that has the answer. Every client has limits
//! (calls, memory, patience), and one that reaches them waits alone.
//!
//! With [`Options::tls`] a connection carries no call before it has TLS: `security`.
//!
//! Not here: clients, the portmapper, what a certificate's subject may do.
//!
//! Reading order: [`Service`], `rpc_server`, `event_thread`, `connection`; then `record_reader` for what
//! comes in, `calls`, `shared_connection` and `reply_batch` for what goes out.

mod calls;
mod clients;
mod common;
mod connection;
mod datagrams;
mod event_thread;
mod listening;
mod options;
mod record_reader;
mod reply_batch;
mod rpc_server;
mod security;
mod service;
mod shared_connection;
mod thread_queue;

pub use common::Counts;
pub use listening::{BindError, Bound, Listeners};
pub use options::{Admit, Options};
pub use rpc_server::{Server, StartError};
pub use service::{
    Exchange, HEAD_BYTES, LONG_HEAD_BYTES, LinkOrigin, Origin, Outcome, Peer, ReplyData, Service, Transport,
};
