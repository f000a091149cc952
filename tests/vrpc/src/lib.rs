//! vrpc end to end: client and server over links, mostly without processes and sockets.
//!
//! [`test_host`] serves an export; [`made_up`] serves a test's own service; at a [`site`] servers are
//! replaced and links cut.
#![forbid(unsafe_code)]

pub mod made_up;
pub mod site;
pub mod test_host;
