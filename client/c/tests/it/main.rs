//! The C interface compared with system calls on the same directory, and its header with C compilers.

mod answers;
mod common;
mod errors;
mod header;
mod later;
mod watermarks;

#[global_allocator]
static ALLOCATOR: tombolo_allocations::Counting = tombolo_allocations::Counting;
