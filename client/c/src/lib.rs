//! The C interface of the client library. `include/tombolo.h` documents each function, and programs are
//! compiled with it. The test `it/header.rs` compares it with this crate.
//!
//! A tree is a [`CachedTree`](libtombolo::CachedTree) on a link to the server, and one thread that runs
//! asynchronous queries. Valid cached attributes are returned without an allocation. No panic crosses into
//! C: a function with a result returns `-EIO` if it panics.
//!
//! Reading order: `boundary` (arguments and errors), `connect`, `tree`; then `stat`, `contents`, `later`,
//! `watermarks`.

mod boundary;
mod connect;
mod contents;
mod later;
mod stat;
mod tree;
mod watermarks;

pub use contents::{Each, tombolo_list, tombolo_read, tombolo_readlink};
pub use later::{Callback, tombolo_stat_async};
pub use stat::{Stat, Time, tombolo_access, tombolo_lstat, tombolo_stat};
pub use tree::{Counts, TomboloTree, tombolo_close, tombolo_counts, tombolo_open, tombolo_version};
pub use watermarks::{Watermarks, tombolo_wait, tombolo_watermarks};
