//! The NFS server from its clients' side.
//!
//! - [`test_server`]: a server for each test. [`fixture`]: one with a client, and what tests say often.
//! - [`client`]: a thin, blocking NFSv3 and MOUNT client for tests, which can also send what no client
//!   should.
//!
//! The tests are in `tests/`. Not here: a client to mount with; that is `back/nfs-client`.
#![forbid(unsafe_code)]

pub mod client;
pub mod fixture;
pub mod test_server;
