//! All tests, in one program.

mod bad_input;
mod conformance;
mod foreign;
mod procedures;
mod server;
