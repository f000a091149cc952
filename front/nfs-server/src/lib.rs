//! The NFS version 3 server: RFC 1813 in, the waist out.
//!
//! One [`NfsService`] answers the calls of all clients of all exports, MOUNT and NFS on one port. It knows no transport:
//! `tombolo_host::rpc_server` brings calls over TCP and UDP, and whatever else carries ONC RPC records can do so too.
//!
//! Not here: locks (NLM), NFS version 4, Kerberos, the portmapper.
#![forbid(unsafe_code)]

mod nodes;
mod openings;
mod permission;
mod verifier;
