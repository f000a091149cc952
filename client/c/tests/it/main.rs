//! The C interface against the system's own calls on the same directory, and its header against C compilers.

mod answers;
mod common;
mod errors;
mod header;
mod later;
mod watermarks;

#[global_allocator]
static ALLOCATOR: tombolo_allocations::Counting = tombolo_allocations::Counting;
