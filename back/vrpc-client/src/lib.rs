//! An export of another domain, over shared memory.
//!
//! [`VrpcExport`] makes a link for each session and [`VrpcFileSystem`] is the waist over it: each operation
//! is encoded where the server reads it (`tombolo_wire_vrpc`), and what the server answers at once is
//! answered before the call returns, by the thread that called. Data are copied once on this side: into
//! memory of this side that the server reads (WRITE), or out of the server's (READ). Programs that call the
//! library can have the memory itself ([`Lent`], [`VrpcFileSystem::read_in_place`]) and copy nothing.
//!
//! Nothing is believed for longer than a call: there is no cache here. The server is not trusted: what it
//! answers is checked, and one that breaks the protocol loses the link.
//!
//! A session outlives its links ([`Patience`]). While there is none its requests wait; behind the next they
//! go on: nodes are found again by their handles, files are opened anew and locks taken anew, and what was
//! not answered is sent again with the sequence number that it had.
//!
//! Not here: rings, doorbells and memory (`tombolo_host_links`, `tombolo_shm`), connecting
//! (`tombolo_host_links::connect`).
//!
//! Main types: [`VrpcExport`], [`Connect`] and [`Socket`], [`VrpcFileSystem`], [`Patience`].
//!
//! Reading order, each using only what stands before it: `callers`, `released`, `slab`, `nodes`, `openings`,
//! `bulk_memory`, `frame` and `connect`; `link`; `reply`, `request`; `recovery`, `owned` (what is sent again
//! over the next link); `links`; `supervisor`, `session`; `lent`, `export`.
#![forbid(unsafe_code)]

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

pub use connect::{Connect, ConnectError, Connected, Patience, Socket};
pub use export::VrpcExport;
pub use lent::{InPlace, Lent};
pub use session::VrpcFileSystem;
