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
pub use getattr::getattr;
pub use libnfs::{Drives, driven};
pub use list::{cold_list, fill, warm_list};
pub use lister::{Lister, beside};
pub use moves::{moves, moves_by_libnfs};
pub use small_files::small_files;
pub use transfer::{Direction, transfer};

/// Bytes of a GETATTR reply with its mark (RFC 1813 §3.3.1): what a bare exchange of the same sizes has to
/// send.
pub const GETATTR_REPLY_BYTES: usize = 4 + 24 + 4 + 84;
/// Bytes of a READ reply with its mark, but for the data and with attributes (§3.3.6).
pub const READ_REPLY_BYTES: usize = 4 + 24 + 4 + 88 + 12;
/// Bytes of a WRITE reply with its mark and all attributes (§3.3.7).
pub const WRITE_REPLY_BYTES: usize = 4 + 24 + 4 + 28 + 88 + 16;
