//! All tests, in one program.

mod protocol;
