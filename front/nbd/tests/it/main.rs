//! Tests with clients of other projects and with a client for arbitrary messages.

mod common;
mod foreign;
mod hostile;
mod requests;
