//! RPC over sockets: the server, and the client against it and against scripted servers.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "tests say what they skip")]

mod client;
mod server;
mod tls;
