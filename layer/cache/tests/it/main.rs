//! All tests, in one program.

mod bad_input;
mod coarse;
mod contracts;
mod damage;
mod fetching;
mod life;
mod rights;
mod walking;
mod world;
