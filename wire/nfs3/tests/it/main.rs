//! All tests, in one program.

mod common;
mod layouts;
mod listing;
mod oracle;
mod side;
