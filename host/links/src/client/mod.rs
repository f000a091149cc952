//! The calling side of a link: any number of threads, and mostly no other thread between a caller and its answer.
//!
//! A caller encodes its request where the server reads it, and looks at the ring itself. Who does so takes out whatever is there, for
//! everybody ([`intake`](self)). Only calls that nobody looks for, as their answers take long, need the receiver thread, which the
//! server wakes. Nothing is allocated for a call unless all ids are out.
//!
//! An id names one of as many buffers as the ring has slots, and a generation. So there can be no more requests under way than the
//! ring holds, and an answer to an id that is not out is known as a lie. The server is not trusted: each answer is copied once, then
//! checked, and a server that breaks the rules loses the link.
//!
//! Not here: what a request means, interrupts, connecting and connecting anew.
//!
//! Main types: [`Line`], [`Call`], [`Reply`], [`LineError`].
//!
//! Reading order: `line`, `call`, `core`, `entry`; `intake`, which says who receives and why no wake-up is lost, `doze` and `receiver`; `ids`
//! and `ticket`.

mod call;
mod core;
mod counters;
mod doze;
mod ear;
mod entry;
mod error;
mod frame;
mod ids;
mod intake;
mod line;
mod receiver;
mod reply;
mod spans;
mod ticket;
mod wakes;
mod warm;

pub use call::{Call, Outcome};
pub use counters::Counts;
pub use error::LineError;
pub use frame::{FRAME_MAX, Frame, FrameWriter};
pub use line::{Line, StartError};
pub use reply::Reply;
pub use spans::Spans;
