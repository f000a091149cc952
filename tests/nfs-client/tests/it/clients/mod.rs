//! Two clients of one server with caches of their own: visibility of each other's changes, and removed open
//! files.

mod attributes;
mod close_to_open;
mod names;
mod pair;
mod removed;
mod writers;

pub use pair::close;
