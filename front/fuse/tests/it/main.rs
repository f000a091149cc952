//! Tests that may share a process. The allocator counts per thread.

mod allocation;
mod bad_blocks;
mod callers;
mod common;
mod dir_attrs;
mod handles;
mod kept;
mod kept_held;
mod limits;
mod locks;
mod mount;
mod overlap;
mod places;
mod push;
mod retaining;
mod virtio;
mod watchers;
mod xattrs;

#[global_allocator]
static ALLOCATOR: tombolo_allocations::Counting = tombolo_allocations::Counting;
