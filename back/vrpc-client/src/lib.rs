//! An export of another domain, over shared memory.
//!
//! [`VrpcExport`] makes a link for each session and [`VrpcFileSystem`] is the waist over it: each operation is encoded where the
//! server reads it (`tombolo_wire_vrpc`), and what the server answers at once is answered before the call returns, by the thread that
//! called. Data are copied once on this side: into memory of this side that the server reads (WRITE), or out of the server's
//! (READ). Programs that call the library can have the memory itself ([`Lent`], [`VrpcFileSystem::read_in_place`]) and copy nothing.
//!
//! Nothing is believed for longer than a call: there is no cache here. The server is not trusted: what it answers is checked, and one
//! that breaks the protocol loses the link. A link that is lost stays lost: every call fails with
//! [`Error::Disconnected`](tombolo_core::fs::Error::Disconnected) from then on, as the nodes and openings of the session are gone with it;
//! attaching anew makes a new link.
//!
//! Not here: rings, bells and memory (`tombolo_host::links`, `tombolo_shm`), connecting (`tombolo_host::links::connect`).
//!
//! Main types: [`VrpcExport`], [`Connect`] and [`Socket`], [`VrpcFileSystem`].
//!
//! Reading order: `export`, `link`, `ask`, `session`.
#![forbid(unsafe_code)]

mod ask;
mod callers;
mod export;
mod lent;
mod link;
mod reply;
mod room;
mod session;
mod socket;

pub use export::{Connect, ConnectError, Connected, VrpcExport};
pub use lent::{InPlace, Lent};
pub use session::VrpcFileSystem;
pub use socket::Socket;
