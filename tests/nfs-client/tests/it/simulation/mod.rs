//! Runs of the client over a simulated wire, each repeated by its seed.

mod caller;
mod client;
mod disk;
mod driver;
mod echo;
mod engine;
mod nfs_host;
mod second_machine;
mod seeds;
mod shared;
