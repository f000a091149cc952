//! All tests in one program, with an allocator that counts per thread.

mod inline;
mod layers;
mod switch;
mod woken;

#[global_allocator]
static ALLOCATOR: tombolo_allocations::Counting = tombolo_allocations::Counting;
