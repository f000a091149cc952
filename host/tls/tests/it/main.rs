//! Sessions between both sides, and refusals.
#![expect(clippy::unwrap_used, reason = "tests")]

mod refusals;
mod streams;
mod world;
