//! The C interface of the client library: `include/tombolo.h` says what each function does, and is what
//! programs are compiled with. The test `it/header.rs` holds it against what is here.
//!
//! A tree is a [`CachedTree`] on a link to the server, and one thread that waits for what is asked
//! asynchronously. Nothing is allocated for an answer from memory. No panic crosses into C: a function that
//! panics answers `-EIO`.
//!
//! Reading order: `boundary` (how arguments come in and errors go out), `connect`, `tree`; then `stat`,
//! `contents`, `later`, `watermarks`.

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
