//! Exports for programs: paths, listings, files and copies of trees over the waist, without a mount.
//!
//! [`Tree`] is an attached export; [`Node`] and [`File`] are what is found and opened in it. All operations
//! are futures, or answers that become one, so that a single thread keeps many of them under way; none needs
//! a runtime ([`block_on`] waits for one). [`copy`] and [`remove_tree`] work on whole trees, with a bounded
//! number of files under way on a few threads; [`disk`] on whole disks.
//!
//! [`CachedTree`] remembers what it was told of paths, and believes it without a request while nothing has
//! changed.
//!
//! Not here: URLs and local paths (the program `tombolo` opens them), permission checks.
//!
//! Reading order: [`tree`](Tree), `node`, `file`, `path`; `cached`; `run` (how futures are run); `copy`;
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

/// No tree is followed deeper than this. No file system has such a bound, but a server can make directories
/// up without end, and each that a walk is in costs memory: some hundred bytes.
pub const DEPTH_MAX: u32 = 1 << 18;

/// So many of the directories that a walk is in keep what they are listed with: a descriptor, and entries.
/// Those above them are opened again when the walk is back, so that depth does not take descriptors.
const LISTINGS_OPEN: usize = 16;
