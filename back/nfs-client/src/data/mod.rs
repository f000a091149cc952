//! File data.
#[cfg(test)]
mod book_tests;
mod budget;
mod ledger;
mod memory;
mod piece;
mod sequence;
