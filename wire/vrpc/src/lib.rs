//! The operations of the waist in a native, fixed layout, for two domains that share memory.
//!
//! A codec without I/O, rings, regions or doorbells. A message is a `kind`, a body of [`BODY_BYTES`] in the
//! ring's slot, and a frame of at most [`FRAME_BYTES`] in the buffer that belongs to the request's id. All
//! numbers are little-endian and naturally aligned, the same for 32-bit and 64-bit peers, so encoding is
//! copying. Small and frequent messages fit into the body alone. The layout is specified in
//! `docs/formats/vrpc.md`.
//!
//! - [`Request`] and its [`Header`], [`Reply`] and [`Outcome`]: `encode` and `decode`, neither of which
//!   allocates.
//! - [`Data`], [`Destination`] and [`Reference`]: file data, in the frame or by reference to bulk memory, the
//!   part of a region for file data.
//! - [`listing`]: the entries of a directory.
//! - [`Status`]: the waist's errors as numbers.
//!
//! Decoding requires *private* bytes, copied once out of the peer's memory. It refuses everything undefined,
//! and accepts one encoding of each message only: a decoded message re-encodes to the same bytes.
//!
//! Non-goals: validation of addresses (`shm`), execution of operations (`front/vrpc-server`,
//! `back/vrpc-client`).
//!
//! Reading order: the tables in `request` and `reply`, then `field`, `fields`, `layout`.
#![forbid(unsafe_code)]

mod attr;
mod bits;
mod data;
mod error;
mod field;
mod fields;
mod frame;
mod layout;
pub mod listing;
mod lists;
mod notices;
mod reply;
mod request;
mod status;

pub use data::{Data, Destination, REFERENCES_MAX, Reference, References, Returned};
pub use error::{DecodeError, EncodeError};
pub use frame::{FrameBuf, FrameSink, SinkFrame};
pub use lists::{FORGETS_MAX, Forgets, GROUPS_MAX, Groups};
pub use notices::NoticeList;
pub use reply::{
    HANDLE_BYTES_MAX, HandleBytes, Offers, Outcome, Reply, Session, TRANSFER_BYTES_MIN, encode_failure,
};
pub use request::{CallerId, Header, Kind, REPLY, Request, Translate};
pub use status::Status;

/// Size of the part of a message in the ring's slot, in bytes.
pub const BODY_BYTES: usize = 48;
/// Maximum size of the part of a message in the buffer of its request, in bytes.
pub const FRAME_BYTES: usize = 4096;

/// The part of a message in the ring's slot.
pub type Body = [u8; BODY_BYTES];
