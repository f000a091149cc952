//! Owned, `Send`, region-counted I/O vectors over memory that a stranger may change.
//!
//! A guest's memory, a shared region, a reader's pages: a peer may write them at any moment, and may even
//! truncate the file beneath them. So no `&[u8]` ever points there. This crate hands out [`Sink`] and
//! [`Source`]: lists of spans that keep their memory alive, can cross threads, and are copied from and to
//! with instructions that the compiler makes no assumptions about.
//!
//! What it is not: an allocator, an address space (the `host` crate turns guest addresses into regions), or a
//! place for protocol knowledge.
//!
//! - [`Region`]: a span of memory, kept alive by counting; heap, or a mapping of a file that another process
//!   owns.
//! - [`Sink`]: memory that an answer is written into. [`Source`]: memory that a request is read from.
//! - [`Buffer`]: a reusable allocation that lends sinks and sources, and is a plain slice again once they are
//!   gone.
//! - [`Lines`], [`Word`]: cache lines and single words of a region that two sides work on by atomics.
//! - [`OutOfBounds`], [`MapError`]: what can go wrong.
//!
//! Reading order: `region`, `vector`, `sink`, `source`, `buffer`, `lines`, `word`, `copy` (why the copies are
//! sound), `sigbus` (what happens when the file beneath a region shrinks).

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
