//! Tests that may share a process.

mod clients;
mod conformance;
mod ganesha;
mod hostile;
mod leases;
mod linked;
mod middle;
mod packed_writes;
mod packing;
mod scripted;
mod side;
mod simulation;
