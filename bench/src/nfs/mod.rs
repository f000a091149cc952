//! NFS version 3 over TCP: a client that costs little, servers that do nothing, and what is asked of the real ones.
//!
//! Reading order: [`Stream`] and [`Wait`], [`client`], [`work`] (what is done), [`limit`] (what nobody can outdo),
//! [`namespace`](run_inside) (where it all runs).

pub mod client;
mod limit;
mod namespace;
mod stream;
pub mod work;

pub use limit::{Limit, Swap, serve};
pub use namespace::run_inside;
pub use stream::{Stream, Wait};
