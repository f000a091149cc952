//! A client for an export of another domain, over shared memory.
//!
//! [`VrpcExport`] establishes a link for each session, and [`VrpcFileSystem`] is the waist over it: each
//! operation is encoded (`tombolo_wire_vrpc`) and copied to a slot of the ring and, if that is too small, to
//! a frame, and a prompt reply is received by the calling thread before the call returns. Larger data is
//! copied at most once on this side: into memory that the server reads (WRITE), or from the server's (READ).
//! Programs that use the library can access the memory itself ([`Lent`], [`VrpcFileSystem::read_in_place`])
//! and copy nothing.
//!
//! There is no cache of data or attributes. The server is not trusted: its replies are checked, and a
//! protocol violation ends the link.
//!
//! Except with [`LinkLossPolicy::None`] a session outlives its links. Without a link its requests wait; on
//! the next one nodes are found again by their handles, files are reopened, locks are taken again, and
//! unanswered requests other than [`VrpcFileSystem::write_in_place`] are sent again, those that change
//! something with their original sequence numbers.
//!
//! Non-goals: rings, doorbells and memory (`tombolo_host_links`, `tombolo_shm`), connecting
//! (`tombolo_host_links::connect`).
//!
//! Main types: [`VrpcExport`], [`Connect`] ([`Socket`], [`Memory`]), [`VrpcFileSystem`],
//! [`LinkLossPolicy`].
//!
//! Reading order: `callers`, `released`, `slab`, `nodes`, `openings`, `bulk_memory`, `frame` and `connect`;
//! `link`; `reply`, `request`; `recovery`, `owned` (requests to send again), `behind`; `links`; `supervisor`,
//! `session`; `lent`, `export`.
#![forbid(unsafe_code)]

mod behind;
mod bulk_memory;
mod callers;
mod connect;
mod export;
mod frame;
mod lent;
mod link;
mod links;
mod nodes;
mod openings;
mod owned;
mod recovery;
mod released;
mod reply;
mod request;
mod session;
mod slab;
mod supervisor;

pub use connect::{Connect, ConnectError, Connected, LinkLossPolicy, Memory, Socket};
pub use export::VrpcExport;
pub use lent::{InPlace, Lent};
pub use session::VrpcFileSystem;
