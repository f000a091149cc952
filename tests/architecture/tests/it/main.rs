//! All tests, in one program.

mod contained;
mod docs;
mod house;
mod words;
