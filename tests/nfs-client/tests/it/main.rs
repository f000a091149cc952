//! Tests that may share a process.

mod cached;
mod clients;
mod conformance;
mod ganesha;
mod hostile;
mod leases;
mod linked;
mod middle;
mod packed_writes;
mod packing;
mod side;
mod simulation;
