//! Links over a socket: admission, ends, and hostile peers.

mod bells;
pub mod common;
mod crowd;
mod endings;
mod hostile;
mod made;
mod region_forwarding;
mod rendezvous;
