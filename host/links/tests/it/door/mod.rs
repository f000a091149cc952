//! Links that are asked for at a socket: who gets one, how they end, and what strangers at the door can do.

mod common;
mod crowd;
mod endings;
mod hostile;
mod introductions;
mod made;
mod seated;
