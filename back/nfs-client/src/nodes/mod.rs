//! What one session knows of the server's nodes.
//!
//! A node is one file handle. It is retained while referenced: by its look-ups, by an opening, or by a
//! pending operation. What it is (number and type) never changes; its handle may, when a server comes back
//! with other ones; its attributes are as fresh as the options want them.

mod evicted;
mod freshness;
mod node;
mod pending_removal;
mod table;

pub(crate) use node::{DEPTH_MAX, Epoch, Location, Node};
pub(crate) use pending_removal::PendingRemoval;
pub(crate) use table::{CachedName, Nodes};
