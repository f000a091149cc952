//! The server side of ONC RPC over TCP and UDP (RFC 5531 §11).
//!
//! The transport treats a call as opaque bytes; a [`Service`] interprets headers, authentication and
//! procedures.
//!
//! Each of a few event threads ([`Options::threads`]) serves its own connections in turns, which are limited
//! in calls and bytes, and polls for a while before it sleeps if that has paid lately. Over TCP, replies that
//! are ready at once are normally sent in one batch at the end of the turn. A later reply is queued by the
//! thread that completes the call, which also sends it, unless another thread is sending or the socket is
//! full. Over UDP each reply is sent at once. Unanswered calls and memory are limited for each connection and
//! for each client address.
//!
//! With [`Options::tls`] a connection must establish TLS before its first call (module `security`), unless
//! [`Options::admit_plain`] exempts its address.
//!
//! Non-goals: clients, the portmapper, authorization by certificate subject.
//!
//! Reading order: [`Service`], `rpc_server`, `event_thread`, `connection`; then `record_reader` for
//! receiving, `calls`, `shared_connection` and `reply_batch` for sending.

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
