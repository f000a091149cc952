//! vrpc end to end: the client and the server over links, without processes or sockets unless a test asks for them.
//!
//! [`bed`] puts a server behind an export.
#![forbid(unsafe_code)]

pub mod bed;
