//! The FUSE protocol, ABI 7.31 to 7.45: bytes in, typed messages out, and back.
//!
//! A codec without I/O: it serves `/dev/fuse` and virtio-fs alike, and knows no thread, clock or descriptor.
//! Requests are decoded from *private* bytes, which were copied out of the peer's memory once: [`Extent`]
//! says how many. File data never comes through here.
//!
//! - [`Request::decode`] gives a [`Decoded`] request; [`DecodeError`] says why not.
//! - [`init::negotiate`] settles version and capabilities.
//! - [`reply`] and [`dirent`] encode answers, [`notification`] what the server says of its own accord.
//! - [`status`] and [`attr`] translate between the waist's words and Linux's; only these two, and the names
//!   in a request, know the waist.
//! - [`layout`] has the structures of the wire, byte for byte.
//!
//! Not here: what an operation means (`front/fuse`), DAX windows, CUSE.
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
