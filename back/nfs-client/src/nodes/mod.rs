//! What one session knows of the server's nodes.
//!
//! A node is one file handle. It is known as long as somebody holds it: by its look-ups, by an opening, or by work under
//! way. What it is (number and type) never changes; its handle may, when a server comes back with other ones; its
//! attributes are as fresh as the options want them.

mod forgotten;
mod freshness;
mod leaving;
mod node;
mod table;

pub(crate) use leaving::Leaving;
pub(crate) use node::{DEPTH_MAX, Epoch, Location, Node};
pub(crate) use table::{Nodes, Seen};
