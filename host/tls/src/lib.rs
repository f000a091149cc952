//! TLS 1.3 over TCP, for RPC (RFC 9289) and NBD: sessions that prove who both sides are, and the certificates
//! for that.
//!
//! - [`Session`] is one connection's TLS: what is sent is encrypted from where it lies, what is received is
//!   decrypted into where it is wanted. It never waits, as the socket below it does not. [`Stream`] is a
//!   socket that has one, or has none yet.
//! - [`ServerTls`] and [`ClientTls`] begin sessions with what a directory holds: `ca.pem`, `cert.pem`,
//!   `key.pem`, and `crl.pem` where certificates were revoked. Files that change count from the next session
//!   on.
//! - [`Authority`] issues and revokes such certificates.
//!
//! Not here: what comes before a session (`host/rpc`, `front/nbd`, `back/nbd-client`), and what a subject may
//! do (`front/nfs-server`).
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

/// What both sides of RPC must name in the handshake (RFC 9289 §8.2), so that no server of another protocol
/// is taken for ours.
const ALPN: &[u8] = b"sunrpc";
