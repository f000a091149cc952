//! The server beyond single calls: identities, restarts, replays, and how
//! many it serves at a time.

mod addresses;
mod concurrency;
mod durability;
mod identity;
mod one_pass;
mod openings;
mod read_only;
mod replays;
mod restarts;
