//! The calling side of a link: any number of threads, and mostly no other thread between a caller and its
//! answer.
//!
//! A caller encodes its request where the server reads it, and looks at the ring itself. Meanwhile it takes
//! out whatever is there, for all callers ([`intake`](self)). Only calls that are not polled, as their
//! answers take long, need the receiver thread, which the server wakes. Nothing is allocated for a call
//! unless all ids are out.
//!
//! An id names one of as many buffers as the ring has slots, and a generation. So there can be no more
//! requests under way than the ring holds, and an answer to an id that is not out is known as a protocol
//! error. The server is not trusted: each answer is copied once, then checked, and a server that breaks the
//! rules loses the link.
//!
//! Not here: what a request means, interrupts, connecting and connecting anew.
//!
//! Main types: [`Line`], [`Call`], [`Reply`], [`LineError`].
//!
//! A call goes down once: `line`, `call`; `intake`, which looks for the answer, and says which thread
//! receives and why no wake-up is lost; `core`, which sends; `ids`, `completion_slot`, `message`. Where
//! callers do not look themselves: `park` and `receiver`, over `leader`; `queued_request`.

mod call;
mod completion_slot;
mod core;
mod counters;
mod doorbell;
mod error;
mod ids;
mod intake;
mod leader;
mod line;
mod message;
mod park;
mod queued_request;
mod receiver;
mod wakes;

pub use call::{Call, Outcome};
pub use counters::Counts;
pub use error::LineError;
pub use line::{Line, StartError};
pub use message::{FRAME_MAX, Frame, FrameWriter, Reply, Spans};
