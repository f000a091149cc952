//! Tests that may share a process. Its allocator counts per thread.

mod allocation;
mod canonical;
mod common;
mod recorded;
mod round_trip;

#[global_allocator]
static ALLOCATOR: tombolo_allocations::Counting = tombolo_allocations::Counting;
