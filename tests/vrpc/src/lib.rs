//! vrpc end to end: the client and the server over links, without processes or sockets unless a test asks for them.
//!
//! [`bed`] puts a server behind an export; [`made_up`] is for tests that bring a server of their own;
//! at a [`site`] servers come and go.
#![forbid(unsafe_code)]

pub mod bed;
pub mod made_up;
pub mod site;
