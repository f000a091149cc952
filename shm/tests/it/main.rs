//! The tests that may share a process. Its allocator counts, for each thread by itself.

mod allocations;
mod area;
mod doorbells;
mod handshakes;
mod hostile;
mod messages;

#[global_allocator]
static ALLOCATOR: tombolo_allocations::Counting = tombolo_allocations::Counting;
