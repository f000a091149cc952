//! All tests, in one program.

mod files;
