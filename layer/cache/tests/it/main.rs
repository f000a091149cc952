//! All tests, in one program.

mod backing;
mod bad_input;
mod coarse;
mod contracts;
mod damage;
mod fetching;
mod lease;
mod life;
mod policy;
mod rights;
mod sharing;
mod sharing_peers;
mod walking;
mod world;
