//! Rings of messages without indices: the writer of a slot stores in it which lap it belongs to.
//!
//! A slot is one cache line (docs/formats/link.md, "Slot"). Its first word, the *stamp*, is stored last; it
//! carries the lap, so the reader sees from the slot alone whether it was written anew, and one line moves
//! between the processors per message. Nothing says how far the reader is: both sides know that no more
//! messages are under way than there are slots, so the slot that comes next has been read
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
