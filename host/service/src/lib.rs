//! What an operator sees of a process, and what a process keeps on disk: the log, the control socket,
//! metrics, the state directory.
//!
//! - [`logging`] writes to standard error, a file or the system's log; [`daemon`] leaves the terminal.
//! - [`control`] answers `tombolo status` and the like at a socket; [`metrics`] answers scrapes over HTTP.
//! - [`sandbox`] confines a process to what it goes on to need.
//! - [`state_dir`] has a directory for each server, [`handle_keys`] the file in it that keeps the signing
//!   keys.
//!
//! Not here: what is counted and shown (`cli`, `layer`). No transport names this crate: what it needs of it,
//! it is given.
//!
//! Main types: [`control::Server`], [`metrics::Endpoint`], [`StateDir`](state_dir::StateDir).
//!
//! Reading order: [`control`], [`state_dir`]; the rest as needed.
#![forbid(unsafe_code)]

pub mod control;
pub mod daemon;
pub mod handle_keys;
pub mod logging;
pub mod metrics;
pub mod sandbox;
pub mod state_dir;
mod syslog;
