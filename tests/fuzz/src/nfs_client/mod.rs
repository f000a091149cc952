//! Arbitrary bytes as a server's replies to the NFS client during a short session: it must neither panic nor
//! write outside of a reader's memory, and each operation must end: by an answer, an error, or a time-out.

mod session;
mod wire;

pub use session::run;
