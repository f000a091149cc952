//! The tests that may share a process.

mod area;
mod doorbells;
mod handshakes;
mod hostile;
mod messages;
