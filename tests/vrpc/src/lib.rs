//! vrpc end to end: the client and the server over links, without processes or sockets unless a test asks for
//! them.
//!
//! [`test_host`] puts a server behind an export; [`made_up`] is for tests that bring a server of their own;
//! at a [`site`] servers come and go.
#![forbid(unsafe_code)]

pub mod made_up;
pub mod site;
pub mod test_host;
