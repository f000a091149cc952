//! ONC RPC over links, as NFS uses it over a network (docs/formats/rpc-link.md).
//!
//! [`RpcLinks`] hands the calls of links to the same [`Service`](crate::server::Service) that answers them
//! over TCP and UDP. [`Route`] connects a client to such a server, and reconnects when the link is lost;
//! [`RpcClient`](crate::client::RpcClient) makes its calls over it.
//!
//! Each request of a link has an id, and each id a buffer of fixed size. The contents of this buffer are the
//! frame: a short message, or the beginning of a longer one. The remainder, mostly file data, is in bulk
//! memory, which the client allocates for both directions. Each side copies the data once, as with vrpc.
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
