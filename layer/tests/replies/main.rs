//! Exactly once, seen from above: requests sent again, over everything that we serve.

mod again;
mod bed;
mod limits;
mod model;
mod progress;
mod without_handles;
