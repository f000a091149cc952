//! One cache for several proxies of a host: its owner lends descriptors of its data files, read-only, over a
//! socket in the cache directory.
//!
//! Names, attributes and rights each proxy has from the origin itself; only data are borrowed. The owner
//! lends what it has of the version that is asked for and has compared with its checksums, in the name of a
//! user whom the origin lets read the file, and keeps it from being evicted meanwhile. Its data files are
//! never written in place for another version and never cut: a descriptor stays right whatever becomes of the
//! owner. Whatever goes wrong, the borrower reads at the origin.
//!
//! A cache of another host is not believed: `middle`.
//!
//! Reading order: `message` (what goes over the socket), `lender` (the owner), `borrower`, `borrowed` (data
//! that were lent); `middle`.

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

/// The socket in a cache directory.
fn socket_in(dir: &Path) -> PathBuf {
    dir.join("share")
}

/// Whether the process at the other end is this one's user, or root.
fn is_own(peer: BorrowedFd<'_>) -> bool {
    socket::peer(peer).is_ok_and(|peer| peer.uid == 0 || peer.uid == creds::own_ids().0)
}
