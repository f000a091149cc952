//! The control socket: how tools ask a running server.
//!
//! One JSON value a line, over a unix socket that only the server's own user and root may use. The protocol
//! is written down in `docs/protocols/control.md`. Not here: what the answers contain; the caller that starts
//! a [`Server`] decides it.

mod client;
mod message;
mod server;
mod socket_path;

pub use client::{AskError, Client};
pub use message::{LINE_LIMIT_BYTES, PROTOCOL, Start};
pub use server::{Answers, Server};
pub use socket_path::{SocketPathError, default_directory, free_socket, prepare, sockets};
