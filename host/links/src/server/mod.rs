//! The answering side of links: one thread for each, which takes requests out of the ring and hands them to a
//! session.
//!
//! An answer may be sent from any thread, in any order. Most are sent on the link's thread before `serve`
//! returns, which costs no more than an uncontended lock. Everything that a peer can write is copied out once
//! and then checked; one that breaks the rules loses its link, with a line in the log, and other links do not
//! notice.
//!
//! Nothing here waits for a client: there is always a slot for an answer, since no more requests are under
//! way than there are slots. A client that takes no answers loses them.
//!
//! Not here: sockets and access to links (`links::listen`, `links::policy`), what a request means.
//!
//! Main types: [`Server`], [`LinkHandle`]; [`Service`], [`Session`], [`Request`], [`Responder`].
//!
//! Reading order: `service`, `responder`, `worker`, `link`, `serving`.

mod common;
mod counters;
mod identity_policy;
mod link;
mod link_cache;
mod region_receiver;
mod responder;
mod service;
mod serving;
mod worker;

pub use counters::Counts;
pub use identity_policy::IdentityPolicy;
pub(super) use region_receiver::RegionReceiver;
pub use responder::Responder;
pub use service::{AllowedIdentities, Credentials, Peer, Refusal, Request, Service, Session, VerifiedPeer};
pub use serving::{LinkCutter, LinkHandle, LinkMeter, ServeError, Server};
