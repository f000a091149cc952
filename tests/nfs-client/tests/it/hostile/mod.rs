//! Servers that violate the protocol, hang, break off, or are replaced. Whatever they do, the client answers
//! with an error that names host and operation, or waits where it was told to; it never ends, never hangs so
//! that no signal helps, and never makes data up.

mod answers;
mod creating;
mod handles;
mod hangs;
mod listings;
mod mounting;
mod operations;
mod reading;
mod records;
mod refusals;
mod removing;
mod restarts;
pub mod stage;
mod types;
mod writing;
