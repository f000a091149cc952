//! XDR, the external data representation of RFC 4506: encoding and decoding.
//!
//! A codec without I/O and without memory of its own. [`Decoder`] reads *private* bytes (a peer must not be
//! able to change them concurrently) and returns slices of them; it never allocates, so a length announced by
//! a peer costs nothing. [`Encoder`] appends to a vector that its owner reuses. A protocol's types declare
//! their layout once, with [`xdr_struct!`] and [`xdr_enum!`], for both directions.
//!
//! ```
//! use tombolo_wire_xdr::{Decode, Decoder, encoded, xdr_struct};
//!
//! xdr_struct! {
//!     /// A name in a directory.
//!     pub struct Location<'a> {
//!         /// The directory.
//!         pub directory: u64,
//!         /// The name.
//!         pub name: &'a [u8],
//!     }
//! }
//!
//! let bytes = encoded(&Location { directory: 7, name: b"a" });
//! assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 1, b'a', 0, 0, 0]);
//! let location = Location::decode(&mut Decoder::new(&bytes))?;
//! assert_eq!(location.name, b"a");
//! # Ok::<(), tombolo_wire_xdr::Error>(())
//! ```
//!
//! Non-goals: floating point, and everything that our protocols do not use.
//!
//! Reading order: `decode`, `encode`, `error`, `few`, `list`, `macros`.
#![forbid(unsafe_code)]

mod decode;
mod encode;
mod error;
mod few;
mod list;
mod macros;

pub use decode::{Decode, Decoder};
pub use encode::{Encode, Encoder, encoded};
pub use error::{Error, Result};
pub use few::Few;
pub use list::{Items, List};

/// Alignment of all items, in bytes (RFC 4506 §3).
pub const UNIT_BYTES: usize = 4;

/// Returns the length of `len` opaque bytes with padding. Saturates.
#[inline]
#[must_use]
pub const fn padded(len: usize) -> usize {
    len.saturating_add(padding(len))
}

/// Returns the number of padding bytes after an opaque of `len` bytes: 0 to 3.
#[inline]
#[must_use]
pub const fn padding(len: usize) -> usize {
    len.wrapping_neg() % UNIT_BYTES
}
