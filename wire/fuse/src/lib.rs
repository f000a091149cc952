//! The FUSE protocol, ABI 7.31 to 7.45: decoding of requests, encoding of replies.
//!
//! A codec without I/O, threads, clock or descriptors, for `/dev/fuse` and virtio-fs alike. Requests are
//! decoded from *private* bytes, copied out of the peer's memory once; [`Extent`] determines their number.
//! File data bypass the codec.
//!
//! - [`Request::decode`] returns a [`Decoded`] request or a [`DecodeError`].
//! - [`init::negotiate`] negotiates version and capabilities.
//! - [`reply`] and [`dirent`] encode replies, [`notification`] unsolicited messages of the server.
//! - [`status`] and [`attr`] convert between the waist's types and Linux's; only these two, and the names in
//!   messages, know the waist.
//! - [`layout`] has the structures of the protocol, byte for byte.
//!
//! Non-goals: execution of operations (`front/fuse`), DAX windows, CUSE.
//!
//! Reading order: `opcode`, `request`, `decode`, `reply`.
#![forbid(unsafe_code)]

pub mod attr;
mod decode;
pub mod dirent;
mod errno;
mod error;
mod extension;
pub mod flags;
mod ids;
pub mod init;
pub mod layout;
pub mod notification;
mod opcode;
pub mod reply;
pub mod request;
pub mod status;

pub use decode::Decoded;
pub use errno::Errno;
pub use error::DecodeError;
pub use extension::Extensions;
pub use ids::{BackingId, FileHandle, LockOwner, NodeId, Unique};
pub use opcode::{Extent, Opcode};
pub use request::Request;
