//! What is asked of a server, each an operation to be timed.

mod crowd;
mod driver;
mod getattr;
mod libnfs;
mod list;
mod lister;
mod moves;
mod small_files;
mod transfer;

pub use crowd::Crowd;
pub use driver::Driver;
pub use getattr::Getattr;
pub use libnfs::{Driven, Drives};
pub use list::{ColdList, WarmList, fill};
pub use lister::{Beside, Lister};
pub use moves::Moves;
pub use small_files::SmallFiles;
pub use transfer::{Direction, Transfer};

/// Bytes of a GETATTR reply with its mark (RFC 1813 §3.3.1): what a bare exchange of the same sizes has to send.
pub const GETATTR_REPLY_BYTES: usize = 4 + 24 + 4 + 84;
/// Bytes of a READ reply with its mark, but for the data and with attributes (§3.3.6).
pub const READ_REPLY_BYTES: usize = 4 + 24 + 4 + 88 + 12;
/// Bytes of a WRITE reply with its mark and all attributes (§3.3.7).
pub const WRITE_REPLY_BYTES: usize = 4 + 24 + 4 + 28 + 88 + 16;
