//! ONC RPC over links, as NFS uses it over a network (docs/formats/rpc-link.md).
//!
//! [`RpcLinks`] hands the calls of links to the same [`Service`](crate::server::Service) that answers them
//! over TCP and UDP. [`Route`] connects a client to such a server, and reconnects when the link is lost;
//! [`RpcClient`](crate::client::RpcClient) makes its calls over it.
//!
//! Short messages travel in the buffer of a request's id. Longer ones, mostly with file data, extend into
//! bulk memory, which the client allocates on both sides: each side copies the data once, as in the waist's
//! own protocol.
//!
//! Non-goals: interpretation and retransmission of calls.
//!
//! Reading order: `message`, `server`, `reply`; `route`, `sending`, `answer`.

mod answer;
mod message;
mod reply;
mod route;
mod sending;
mod server;

pub use message::{CallMessage, MessageError, Part, ReplyMessage};
pub use route::{Dial, DialError, Dialed, Route};
pub use server::RpcLinks;

pub(crate) use answer::{Body, ReplyError};
pub(crate) use route::Live;
pub(crate) use sending::{Attempt, Outgoing};
