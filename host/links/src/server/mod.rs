//! The answering side of links: a thread for each link takes requests out of the ring and passes them to a
//! session.
//!
//! Answers may be sent from any thread, in any order: mostly on the link's thread before [`Session::serve`]
//! returns, at the cost of an uncontended lock. Each request is copied once and then checked; bulk data are
//! read in place. A violation cuts its link, with a log message, and affects no other.
//!
//! No thread waits for a client: there is always a slot for an answer, since the requests outstanding never
//! exceed the slots. A client that sends further requests before it takes its answers loses answers.
//!
//! Non-goals: sockets and access control (`links::listen`, `links::policy`), the meaning of requests.
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
