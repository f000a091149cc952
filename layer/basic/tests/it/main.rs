//! All tests, in one program. Its allocator counts, for each thread by itself.

mod inline;
mod layers;

#[global_allocator]
static ALLOCATOR: tombolo_allocations::Counting = tombolo_allocations::Counting;
