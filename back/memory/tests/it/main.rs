//! All tests, in one program.

mod limits;
