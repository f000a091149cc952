//! Control socket for requests to a running server.
//!
//! Protocol: one JSON value per line over a UNIX socket that only the server's user and root may use
//! (`docs/protocols/control.md`). Non-goal: the content of replies, which the caller that starts a [`Server`]
//! decides.

mod client;
mod message;
mod server;
mod socket_path;

pub use client::{AskError, Client};
pub use message::{LINE_LIMIT_BYTES, PROTOCOL, Start};
pub use server::{Answers, Server};
pub use socket_path::{SocketPathError, default_directory, free_socket, prepare, sockets};
