//! NFS version 3 over TCP: a cheap client, null servers, and the operations for real ones.
//!
//! Reading order: [`Stream`] and [`Wait`], [`client`], [`work`] (operations), [`limit`] (null servers),
//! [`run_inside`] (isolation), [`Link`].

pub mod client;
mod limit;
mod link;
mod stream;
pub mod work;

pub use limit::{Limit, READ_PREFIX, Swap, serve, swap};
pub use link::{Link, Network, run_inside};
pub use stream::{Stream, Wait};
