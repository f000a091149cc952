//! What every server needs around its work: sockets, signals, the log, control, metrics, a state directory, and
//! the keys of file handles in it.
//!
//! Not here: protocols (`wire/`) and what a request means (`front/`, `layer/`, `back/`).
//!
//! Reading order: [`listener`], [`control`], [`state_dir`]; the rest as needed.
#![forbid(unsafe_code)]

pub mod buffers;
pub mod control;
pub mod daemon;
pub mod descriptors;
pub mod handle_keys;
pub mod links;
pub mod listener;
pub mod logging;
pub mod metrics;
pub mod pool;
pub mod rpc_client;
pub mod rpc_server;
mod seldom;
pub mod signals;
pub mod signing_keys;
pub mod spin;
pub mod state_dir;
mod syslog;
pub mod task;
pub mod vhost_user;
mod waiters;
