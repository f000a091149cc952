//! All tests, in one program.

mod bad_input;
mod libnfs;
mod procedures;
mod server;
