//! Rings of messages without indices: the writer stamps each slot with its lap.
//!
//! A slot is one cache line (docs/formats/link.md, "Slot"). Its first word is stored last. The *stamp* in it
//! contains the lap, so the reader recognises a new message from the slot alone, and one line is transferred
//! between the processors per message. The reader's position is not published: both sides know that no more
//! messages are outstanding than there are slots, so the next slot has been read
//! (docs/decisions/shm-rings.md).
//!
//! Reading order: [`Message`], [`Producer`], [`Consumer`]; [`Prefetch`].

mod consumer;
mod message;
mod prefetch;
mod producer;
mod slot_stamp;

pub use consumer::{Consumer, StampFault};
pub use message::{BODY_BYTES, Message};
pub use prefetch::Prefetch;
pub use producer::Producer;
