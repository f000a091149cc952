//! Nodes of the server known to one session.
//!
//! A node is one file handle. It is retained while it has look-ups, an opening or unstable writes, or is
//! referenced by a pending operation or as the parent of another node. Its number and type never change; its
//! handle may, when a server restarts with other handles; its attributes are as fresh as the options require.

mod evicted;
mod freshness;
mod node;
mod pending_removal;
mod table;

pub(crate) use node::{DEPTH_MAX, Epoch, Location, Node};
pub(crate) use pending_removal::PendingRemoval;
pub(crate) use table::{CachedName, FoundBy, Nodes};
