//! All tests, in one program.

mod bad_input;
mod foreign;
mod procedures;
mod server;
