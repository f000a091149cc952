//! All tests, in one program.

mod codec;
mod recorded;
