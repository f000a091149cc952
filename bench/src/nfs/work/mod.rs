//! Timed operations on a server.

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
pub use list::{cold_list, fill_folder, warm_list};
pub use lister::{Lister, beside};
pub use moves::{moves, moves_by_libnfs};
pub use small_files::small_files;
pub use transfer::{Direction, transfer};

/// Size of a GETATTR reply with its mark (RFC 1813 §3.3.1), for bare exchanges of the same size.
pub const GETATTR_REPLY_BYTES: usize = 4 + 24 + 4 + 84;
/// Size of a READ reply with its mark and attributes, without the data (§3.3.6).
pub const READ_REPLY_BYTES: usize = 4 + 24 + 4 + 88 + 12;
/// Size of a WRITE reply with its mark and all attributes (§3.3.7).
pub const WRITE_REPLY_BYTES: usize = 4 + 24 + 4 + 28 + 88 + 16;
