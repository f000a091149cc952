//! Any bytes as what a server sends to the NFS client during a short session of operations: it must not
//! panic, must not write beside the memory that a reader gave it, and each operation must come to an end: by
//! an answer, an error, or the clock.

mod session;
mod wire;

pub use session::run;
