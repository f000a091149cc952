//! The tests that may share a process.

mod area;
mod bells;
mod hostile;
mod messages;
mod seats;
