//! NFS version 3 over TCP: a client that costs little, servers that do nothing, and what is asked of the real
//! ones.
//!
//! Reading order: [`Stream`] and [`Wait`], [`client`], [`work`] (what is done), [`limit`] (the limits),
//! [`namespace`](run_inside) (where it all runs), [`Link`].

pub mod client;
mod limit;
mod link;
mod namespace;
mod stream;
pub mod work;

pub use limit::{Bulk, BulkClient, Limit, READ_PREFIX, serve, swap};
pub use link::{Link, Network};
pub use namespace::run_inside;
pub use stream::{Stream, Wait};
