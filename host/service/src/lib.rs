//! Operational services of a process: log, control socket, metrics, state directory, sandbox.
//!
//! - [`logging`] writes to standard error, and for a background mount also to the system log; [`daemon`]
//!   detaches from the terminal.
//! - [`control`] serves `tombolo status` and other requests at a socket; [`metrics`] serves scrapes over
//!   HTTP.
//! - [`sandbox`] confines a process to its remaining needs.
//! - [`state_dir`] has a directory for each server, [`handle_keys`] the file of its signing keys.
//!
//! Non-goals: the counters and their presentation (`cli`, `layer`). Transports do not depend on this crate.
//!
//! Main types: [`control::Server`], [`metrics::Server`], [`StateDir`](state_dir::StateDir).
//!
//! Reading order: [`control`], [`state_dir`], then the others as needed.
#![forbid(unsafe_code)]

pub mod control;
pub mod daemon;
pub mod handle_keys;
pub mod logging;
pub mod metrics;
pub mod sandbox;
pub mod state_dir;
mod syslog;
