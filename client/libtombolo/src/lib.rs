//! A client library: paths, listings, files and copies of trees over the waist, without a mount.
//!
//! [`Tree`] is an attached export; [`Node`] and [`File`] are found and opened in it. Operations return
//! futures or [`Answer`](tombolo_core::Answer)s, so that a single thread can have many in flight; none needs
//! a runtime ([`block_on`] waits for a future). [`copy`] and [`remove_tree`] work on whole trees, with a
//! bounded number of files in progress; [`disk`] on whole disks.
//!
//! [`CachedTree`] caches answers about paths and uses them without a request while nothing has changed.
//!
//! Non-goals: URLs and local paths (the program `tombolo` opens them), permission checks.
//!
//! Reading order: [`tree`](Tree), `node`, `file`, `path`; `cached`; `run` (execution of futures); `copy`;
//! `disk`.
#![forbid(unsafe_code)]

mod above;
mod buffer_pool;
mod cached;
pub mod copy;
pub mod disk;
mod file;
mod listing;
mod node;
mod path;
mod remove;
mod run;
mod stream;
mod tree;
mod watermarks;
mod zeroes;

pub use above::Above;
pub use cached::{CacheOptions, CachedTree, Counts, Listed};
pub use file::File;
pub use listing::{Item, Listing};
pub use node::Node;
pub use path::{LINKS_MAX, Last};
pub use remove::{Removal, remove_tree};
pub use run::{Spawner, ThreadPool, block_on};
pub use stream::{StreamError, StreamOptions};
pub use tombolo_core::fs::Watermarks;
pub use tree::{Tree, User};
pub use watermarks::Reached;

/// Maximum depth of a walk. File systems have no such bound, but a server can invent directories without end,
/// and each ancestor of the walk takes some hundred bytes of memory.
pub const DEPTH_MAX: u32 = 1 << 18;

/// Number of a walk's innermost directories that retain their listing: a descriptor, and entries. Those above
/// are reopened when the walk returns to them, so that depth does not consume descriptors.
const LISTINGS_OPEN: usize = 16;
