//! Exactly once, seen from above: requests sent again, over everything that we serve, and to the next
//! process.

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
