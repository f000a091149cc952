//! Two clients of one server, each with its own caches: what one sees of what the other does, and when; and
//! what becomes of files that are open and removed.

mod attributes;
mod close_to_open;
mod names;
mod pair;
mod removed;
mod writers;
