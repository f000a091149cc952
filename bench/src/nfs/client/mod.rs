//! Thin client that leaves the server as the bottleneck: calls are encoded once and sent in batches, and
//! replies are matched by xid and dropped. Its own cost is shown in the `null` column.

mod call;
mod connection;
mod mounted;
mod procedures;
mod records;

pub use call::{Call, Reply};
pub use connection::Connection;
pub use mounted::Mounted;
pub use procedures::{
    Handle, Page, commit, committed, create, created, getattr, offset_at, page, read, readdirplus, remove,
    removed, write, written,
};
pub use records::Records;
