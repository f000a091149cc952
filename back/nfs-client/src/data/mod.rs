//! File data: what was written and is not on the server's stable storage yet, and what was read before anybody asked.
mod ahead;
mod allowance;
mod budget;
mod committing;
mod copy_of_error;
mod file;
mod ledger;
mod losses;
mod memory;
mod piece;
mod reading;
mod sequence;
mod server;
mod writing;

#[cfg(test)]
mod book_tests;
#[cfg(test)]
mod model;

pub(crate) use budget::Budget;
pub(crate) use committing::{commit, pause, settle};
pub(crate) use file::FileData;
pub(crate) use reading::{ReadAhead, read};
pub(crate) use server::{Server, Sizes, Wrote};
pub(crate) use writing::{append, write};
