//! All tests, in one program.

mod docs;
mod house;
