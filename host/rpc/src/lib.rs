//! ONC RPC (RFC 5531), server and client: over TCP, UDP, and links in shared memory.
//!
//! - [`server`] receives calls over TCP and UDP and sends replies; a [`Service`](server::Service) interprets
//!   the calls.
//! - [`client`] makes calls over TCP, UDP and links, and retransmits calls that were not answered.
//! - [`link`] carries the same messages over a link: its server hands calls to the same
//!   [`Service`](server::Service).
//!
//! Non-goals: the codec (`wire/rpc`), programs and procedures (`front/nfs-server`, `back/nfs-client`), the
//! portmapper, TLS itself (`host/tls`), RPCSEC_GSS.
//!
//! Main types: [`server::Server`], [`server::Service`], [`client::RpcClient`], [`link::RpcLinks`],
//! [`link::Route`].
//!
//! Reading order: [`server`], [`client`], [`link`].
#![forbid(unsafe_code)]

mod alarm;
pub mod client;
pub mod link;
pub mod server;
