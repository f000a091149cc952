//! Messages of ONC RPC over links, as NFS sends them over a network (docs/formats/rpc-link.md).
//!
//! [`RpcLinks`] hands the calls of links to the same [`Service`](crate::server::Service) that answers them
//! over TCP and UDP. [`Route`] is the way of a client to such a server: one link, and another one when that
//! is lost; [`RpcClient`](crate::client::RpcClient) makes its calls over it.
//!
//! What is short travels in the buffer of a request's id. File data and what else does not fit there lie in
//! bulk memory, which the client gives out on both sides: they are copied once by each side, as over the
//! waist's own protocol.
//!
//! Not here: what a call says, when it is made again.
//!
//! Reading order: `message`, `server`, `reply`; `route`, `sending`, `answer`.

mod answer;
mod bulk_space;
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
