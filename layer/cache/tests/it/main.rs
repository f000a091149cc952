//! All tests in one program.

mod backing;
mod bad_input;
mod coarse;
mod contracts;
mod damage;
mod evicted;
mod fetching;
mod granted;
mod images;
mod large;
mod lease;
mod lease_own;
mod life;
mod offered;
mod policy;
mod raced;
mod removed;
mod reused;
mod rights;
mod sharing;
mod sharing_peers;
mod trouble;
mod walking;
mod world;
mod written;
mod xattrs;
