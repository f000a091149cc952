//! The answering side of links: one thread for each, which takes requests out of the ring and hands them to a session.
//!
//! An answer may be sent from any thread, in any order. Most are sent on the link's thread before `serve` returns, which costs no
//! more than an uncontended lock. Everything that a peer can write is copied out once and then checked; one that
//! breaks the rules loses its link, with a line in the log, and nobody else notices.
//!
//! Nothing here waits for a client: there is always room for an answer, since no more requests are under way than there are
//! slots. A client that takes no answers loses them.
//!
//! Not here: sockets and who may have a link (`links::listen`, `links::policy`), what a request means.
//!
//! Main types: [`Server`], [`LinkHandle`]; [`Service`], [`Session`], [`Request`], [`Responder`].
//!
//! Reading order: `service`, `responder`, `worker`, `link`, `serving`.

mod common;
mod counters;
mod link;
mod reception;
mod responder;
mod service;
mod serving;
mod spare;
mod voice;
mod worker;

pub use counters::Counts;
pub(super) use reception::Reception;
pub use responder::Responder;
pub use service::{Credentials, Peer, Refusal, Request, Service, Session, SpeaksFor, Standing};
pub use serving::{LinkCutter, LinkHandle, LinkMeter, ServeError, Server};
pub use voice::Voice;
