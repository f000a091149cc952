//! Runs of the client over a simulated wire, each repeated by its seed.

mod disk;
mod driver;
mod echo;
mod engine;
mod network;
mod seeds;
