//! Runs of the client over a simulated wire, each repeated by its seed.

mod echo;
mod network;
