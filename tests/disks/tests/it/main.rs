//! The client of NBD with our server and with those of others.

mod common;
mod lost;
mod model;
