//! The server with clients of others and with one that says whatever it likes.

mod common;
mod foreign;
mod hostile;
mod requests;
