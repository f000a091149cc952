//! The server side of ONC RPC over TCP and UDP (RFC 5531 §11): calls in, replies out.
//!
//! A call is bytes here. What they mean (headers, authentication, procedures) is the business of a [`Service`].

mod service;

pub use service::{Exchange, HEAD_BYTES, LONG_HEAD_BYTES, Outcome, Peer, ReplyData, Service, Transport};
