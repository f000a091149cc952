//! All tests, in one program.

mod codec;
mod documented;
mod recorded;
