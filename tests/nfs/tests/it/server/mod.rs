//! What a server is to its clients beyond single calls: who they are to it, what outlives it, what it does only once, and how
//! many it serves at a time.

mod addresses;
mod concurrency;
mod crowds;
mod durability;
mod identity;
mod openings;
mod read_only;
mod replays;
mod restarts;
