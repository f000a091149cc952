//! One cache for several proxies of a host: its owner lends read-only descriptors of its data files over a
//! socket in the cache directory.
//!
//! Only data are borrowed; each proxy fetches names, attributes and permissions from the origin. The owner
//! lends verified data of the requested version, on behalf of a user whom the origin permits to read the
//! file. It does not evict lent data, unless most of its capacity is lent. Data files are never overwritten
//! with another version nor truncated, so a lent descriptor stays valid even after the owner's end. On any
//! failure the borrower reads from the origin.
//!
//! Caches of other hosts are untrusted (site caches): `middle`.
//!
//! Reading order: `message` (the protocol), `lender` (the owner), `borrower`, `borrowed` (lent data);
//! `middle`.

mod borrowed;
mod borrower;
mod extents;
mod lender;
pub(crate) mod message;
mod middle;

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use tombolo_sys::{creds, socket};

pub(crate) use borrowed::Borrowed;
pub use borrower::BorrowOptions;
pub(crate) use borrower::Borrower;
pub(crate) use extents::Extents;
pub(crate) use lender::Lender;
pub use middle::Connect;
pub(crate) use middle::Middle;

fn socket_in(dir: &Path) -> PathBuf {
    dir.join("share")
}

/// Returns `true` if the peer runs as this process's user or root.
fn is_own(peer: BorrowedFd<'_>) -> bool {
    socket::peer(peer).is_ok_and(|peer| peer.uid == 0 || peer.uid == creds::own_ids().0)
}
