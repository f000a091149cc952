//! A thin client, so that the server is the bottleneck: calls are encoded once, sent in batches, and replies
//! are found by their xid and dropped. What it costs by itself is a row's `null` column.

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
