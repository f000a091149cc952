//! vrpc end to end: client and server over links, mostly without processes and sockets.
//!
//! At a [`site`] exports are served, servers replaced, and links cut; [`made_up`] serves a test's own
//! service.
#![forbid(unsafe_code)]

pub mod made_up;
pub mod site;
