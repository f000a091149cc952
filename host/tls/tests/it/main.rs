//! Sessions between our two sides, and what each refuses.
#![expect(clippy::unwrap_used, reason = "tests")]

mod refusals;
mod streams;
mod world;
