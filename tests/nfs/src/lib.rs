//! The NFS server from its clients' side.
//!
//! - [`test_server`]: a server for each test. [`fixture`]: one with a client, and what tests say often.
//! - [`client`]: a thin, blocking NFSv3 and MOUNT client for tests, which can also send what no client should.
//! - [`file_system`]: the waist over that client, so that the conformance suite runs over the wire.
//!
//! The tests are in `tests/`. Not here: a client to mount with; that is `back/nfs-client`.
#![forbid(unsafe_code)]

pub mod client;
pub mod file_system;
pub mod fixture;
pub mod test_server;
