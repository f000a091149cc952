//! The calling side of a link. Any number of threads make calls, mostly without another thread between a
//! caller and its answer.
//!
//! A caller encodes its request in shared memory, where the server reads it. It then polls the answer ring
//! itself, and takes out available answers for all callers (`intake`). Calls whose answers take long are no
//! longer polled; mostly the receiver thread, which the server wakes, completes them. A call allocates memory
//! only while all ids are in use, or callers retain many answers.
//!
//! An id consists of the number of a request buffer and a generation, the count of its reuses. There are as
//! many buffers as slots in the ring. Outstanding requests therefore never exceed the ring, and an answer to
//! an unused id is recognised as a protocol error. The server is not trusted: each answer is copied once and
//! then checked, and a violation ends the link.
//!
//! Non-goals: the meaning of requests, interrupts, connecting and reconnecting.
//!
//! Main types: [`Line`], [`Call`], [`Reply`], [`LineError`].
//!
//! Reading order: `line`, `call`; `intake`, which polls for the answer, and explains which thread receives
//! and why no wake-up is lost; `core`, which sends; `ids`, `completion_slot`, `message`; `park` and
//! `receiver`, which wait without polling and share the state in `leader`; `queued_request`.

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
