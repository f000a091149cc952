//! All tests, in one program.

mod shared;
mod stranger;
mod vectors;
