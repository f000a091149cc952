//! The NFS server, tested from its clients' side.
//!
//! - [`test_server`]: a server for each test. [`fixture`]: a server with a client and common assertions.
//! - [`client`]: a thin, blocking NFSv3 and MOUNT client for tests, which can also send malformed calls.
//!
//! The tests are in `tests/`. Non-goal: a client to mount with; that is `back/nfs-client`.
#![forbid(unsafe_code)]

pub mod client;
pub mod fixture;
pub mod test_server;
