//! Support of tests in several crates.
//!
//! - [`Session`]: a user's session of a file system, with short forms of the waist's operations.
//! - [`Scripted`]: a layer that refuses, loses or withholds operations as a closure says; [`wrapped`]: one of
//!   sessions.
//! - [`history`]: random operations on two sides that must agree, with replay and reduction.
//! - [`tests!`]: a table of cases, each a test.
//! - [`image`]: the files that a crash would leave.
//! - [`until`] and [`once_free`]: wait for a condition, or for the end of a lock, not for ever.
#![forbid(unsafe_code)]

mod files;
pub mod history;
mod place;
mod scripted;
mod session;
mod tests;
mod wait;

pub use files::image;
pub use place::{Place, name};
pub use scripted::{Act, Scripted, wrapped};
pub use session::{READ_WRITE, Session, budget, mode, plain, xattr_name};
pub use wait::{once_free, until};
