//! An overlay: a disk that began as another one, its *base*, and stores its own writes in a *redo log*. Many
//! overlays can share a base, which none of them changes.
//!
//! The redo log is itself a disk of the waist: a local sparse file, or a remote one. It has a header, and for
//! each segment of 64 MiB a page with the states of its blocks of 4 KiB, followed by space for these blocks
//! (`docs/formats/overlay.md`). The first write to a block stores the whole block, completed from the base;
//! later ones write in place. Pages are made durable by a flush, after the data they refer to, so a power
//! failure leaves the disk as of the last flush, with each block written since either old, new or torn.
//!
//! Non-goals: finding and opening files; resizing a disk in use.
//!
//! Main types: [`Overlay`], [`Header`], [`StateMemory`], [`OverlayError`].
//!
//! Reading order: `header`, `layout`, `states`, `kept`, `redo_log` (opening, and durability), `disk` (the
//! waist), `changes`, `merge`.
#![forbid(unsafe_code)]

mod changes;
mod disk;
mod error;
mod header;
mod kept;
mod layout;
mod merge;
mod redo_log;
mod states;

pub use disk::Overlay;
pub use error::OverlayError;
pub use header::Header;
pub use kept::{Identity, StateMemory};
pub use layout::PAGE_BYTES as HEADER_BYTES;
