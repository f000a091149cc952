//! All tests, in one program.

mod headers;
mod records;
