//! Tests that may share a process. Its allocator counts per thread.

mod allocations;
mod area;
mod doorbells;
mod handshakes;
mod hostile;
mod messages;

#[global_allocator]
static ALLOCATOR: tombolo_allocations::Counting = tombolo_allocations::Counting;
