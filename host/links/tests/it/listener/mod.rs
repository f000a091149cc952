//! Links that are asked for at a socket: which peers get one, how they end, and what hostile peers can do.

pub mod common;
mod crowd;
mod endings;
mod hostile;
mod made;
mod region_forwarding;
mod rendezvous;
