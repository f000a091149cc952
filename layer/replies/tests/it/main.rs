//! Exactly-once execution: duplicates over every kind of file system, and to the next process.

mod appends;
mod crash;
mod damage;
mod duplicates;
mod fixture;
mod impatient;
mod killed;
mod limits;
mod model;
mod progress;
mod room;
mod without_handles;
