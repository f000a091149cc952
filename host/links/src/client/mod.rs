//! The calling side of a link: any number of threads, mostly without another thread between a caller and its
//! answer.
//!
//! A caller encodes its request where the server reads it, and polls the ring itself, taking out available
//! answers for all callers ([`intake`](self)). Only calls that are not polled, because their answers take
//! long, need the receiver thread, which the server wakes. Calls allocate nothing unless all ids are in use.
//!
//! An id names one of as many buffers as the ring has slots, and a generation. Requests outstanding therefore
//! never exceed the ring, and an answer to an unused id is a detectable protocol error. The server is not
//! trusted: each answer is copied once, then checked, and a violation ends the link.
//!
//! Non-goals: the meaning of requests, interrupts, connecting and reconnecting.
//!
//! Main types: [`Line`], [`Call`], [`Reply`], [`LineError`].
//!
//! Reading order: `line`, `call`; `intake`, which polls for the answer, and explains which thread receives
//! and why no wake-up is lost; `core`, which sends; `ids`, `completion_slot`, `message`; for callers that do
//! not poll, `park` and `receiver`, over `leader`; `queued_request`.

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
