//! Servers that violate the protocol, hang, disconnect, or are replaced. The client either returns an error
//! that names host and operation, or waits as configured; it never crashes, never hangs uninterruptibly, and
//! never invents data.

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
