//! Owned, `Send`, reference-counted I/O vectors over memory that untrusted peers may change.
//!
//! A guest's memory, a shared region, a reader's pages: a peer may write them at any moment, and may even
//! truncate the file beneath them. No `&[u8]` ever refers to them. [`Sink`] and [`Source`] are lists of spans
//! that keep their memory alive, can cross threads, and are copied with instructions about which the compiler
//! makes no assumptions.
//!
//! Non-goals: allocation, address spaces (`host/vhost` translates guest addresses to regions), protocols.
//!
//! - [`Region`]: a reference-counted span of memory; heap, or a mapping of a file that other processes may
//!   change.
//! - [`Sink`]: memory that an answer is written into. [`Source`]: memory that a request is read from.
//! - [`Buffer`]: a reusable allocation, referred to by sinks and sources, which is a plain slice again once
//!   they are dropped.
//! - [`Lines`], [`Word`]: cache lines and single words of a region, which two sides access concurrently by
//!   atomic loads and stores.
//! - [`OutOfBounds`], [`MapError`]: errors.
//!
//! Reading order: `region`, `vector`, `sink`, `source`, `buffer`, `lines`, `word`, `copy` (soundness of
//! copies), `sigbus` (truncation of the file beneath a region).

mod buffer;
#[allow(clippy::multiple_unsafe_ops_per_block, reason = "one bound covers all the moves of a copy")]
mod copy;
mod error;
mod lines;
mod region;
mod sigbus;
mod sink;
mod source;
mod vector;
mod word;

pub use buffer::Buffer;
pub use error::{MapError, OutOfBounds};
pub use lines::{LINE_BYTES, Lines, LinesMut, WORDS_PER_LINE};
pub use region::Region;
pub use sigbus::REGION_LIMIT;
pub use sink::Sink;
pub use source::Source;
pub use vector::{INLINE_SEGMENTS, Segment};
pub use word::{Word, WordMut};
