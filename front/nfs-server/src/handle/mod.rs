//! File handles that clients may keep for as long as they like: signed, so that none can be forged.
//!
//! A handle names a file by what its file system calls it (see `tombolo_core::fs::PersistentHandle`), and carries a proof that
//! this server, or another one with the same key, gave it out for this export of this file system. It is good after a
//! restart. The bytes are described in `docs/formats/handles.md`.
//!
//! Reading order: `layout` (the bytes), `signer` (making and checking them). What they are signed with is
//! [`tombolo_host_runtime::signing_keys`].

mod layout;
mod signer;

pub use layout::{ExportCollision, ExportId};
pub use signer::{Refused, Signer};
