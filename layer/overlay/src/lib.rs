//! An overlay: a disk that began as another one, its *base*, and keeps what is written to it in a *redo log*
//! of its own. Many overlays stand on one base, which none of them changes.
//!
//! The redo log is a disk of the waist as well: a sparse file of this host, or one far away. It has a header,
//! and for each segment of 64 MiB a page that says where each of its blocks of 4 KiB is found, followed by
//! the room of those blocks (`docs/formats/overlay.md`). A block that is written to for the first time is
//! written whole, completed out of the base; from then on it is written in place. The pages become durable by
//! a flush, after what they speak of, so a loss of power leaves a disk as it was flushed last, and each block
//! that was written since old, new or torn.
//!
//! Not here: finding and opening files; changing the size of a disk that is in use.
//!
//! Main types: [`Overlay`], [`Header`], [`Kept`], [`OverlayError`].
//!
//! Reading order: `header`, `layout`, `states`, `kept`, `redo_log` (opening, and what makes it durable),
//! `disk` (the waist), `changes`, `merge`.
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
pub use kept::{Identity, Kept};
pub use layout::PAGE_BYTES as HEADER_BYTES;
