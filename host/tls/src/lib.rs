//! TLS 1.3 over TCP, for RPC (RFC 9289) and NBD: sessions authenticated by the certificates of both sides or
//! of the server, and those certificates.
//!
//! - [`Session`] is the TLS state of one connection. It never blocks. [`Stream`] is a socket with or without
//!   a session.
//! - [`ServerTls`] and [`ClientTls`] begin sessions with the files of a directory: `ca.pem`, `cert.pem`,
//!   `key.pem`, and `crl.pem` where certificates were revoked. Changed files apply from the next session on.
//! - [`Authority`] issues and revokes such certificates.
//!
//! Non-goals: negotiation before a session (`host/rpc`, `front/nbd`, `back/nbd-client`), authorization of
//! subjects (`front/nfs-server`).
//!
//! Main types: [`Session`], [`ServerTls`], [`ClientTls`], [`Authority`].
//!
//! Reading order: `session`, `stream`, `credentials`, `certificate`, `error`; then `authority`.
#![forbid(unsafe_code)]

mod authority;
mod certificate;
mod credentials;
mod error;
mod session;
mod stream;

pub use authority::{Authority, AuthorityError, Issued, Request};
pub use certificate::PeerCertificate;
pub use credentials::{BadHostName, ClientTls, HostName, Presents, ServerTls, SetupError};
pub use error::TlsError;
pub use session::Session;
pub use stream::Stream;

/// Protocol name that both sides of RPC must negotiate (RFC 9289 §8.2), so that no server of another protocol
/// is accepted.
const ALPN: &[u8] = b"sunrpc";
