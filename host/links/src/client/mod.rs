//! The calling side of a link: any number of threads, and mostly no other thread between a caller and its answer.
//!
//! A caller encodes its request where the server reads it, and looks at the ring itself. Meanwhile it takes out whatever is there, for
//! all callers ([`intake`](self)). Only calls that are not polled, as their answers take long, need the receiver thread, which the
//! server wakes. Nothing is allocated for a call unless all ids are out.
//!
//! An id names one of as many buffers as the ring has slots, and a generation. So there can be no more requests under way than the
//! ring holds, and an answer to an id that is not out is known as a protocol error. The server is not trusted: each answer is copied once, then
//! checked, and a server that breaks the rules loses the link.
//!
//! Not here: what a request means, interrupts, connecting and connecting anew.
//!
//! Main types: [`Line`], [`Call`], [`Reply`], [`LineError`].
//!
//! Reading order: `line`, `call`, `core`, `completion_slot`; `intake`, which says which thread receives and why no wake-up is lost, `park` and
//! `receiver`; `ids` and `queued_request`.

mod call;
mod completion_slot;
mod core;
mod counters;
mod doorbell;
mod error;
mod frame;
mod id_cache;
mod ids;
mod intake;
mod line;
mod park;
mod queued_request;
mod receiver;
mod reply;
mod spans;
mod wakes;

pub use call::{Call, Outcome};
pub use counters::Counts;
pub use error::LineError;
pub use frame::{FRAME_MAX, Frame, FrameWriter};
pub use line::{Line, StartError};
pub use reply::Reply;
pub use spans::Spans;
