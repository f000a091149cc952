//! An NFS version 3 client: any server's export, behind the waist.
//!
//! The caller's thread encodes a call and sends it; over sockets, one receiver drains all replies of a
//! wake-up and runs the tasks that waited for them (`tombolo_host_rpc::client`). Many operations can be
//! pending without a waiting thread. File data are sent from the caller's memory and received into it.
//!
//! - [`NfsExport`] is a mounted export: [`NfsExport::mount`] with a [`Server`], a path and [`Options`].
//! - Its sessions implement the waist. Attributes are cached for the time given by [`AttributeTimes`]; an
//!   open sees everything closed before it (close-to-open), unless the caller needs no check. Unstable writes
//!   are answered once they are sent or queued; `data` retains them until a flush has made them stable. A
//!   file removed while open is renamed, and removed when it is closed.
//!
//! Non-goals: locks (NLM), RPCSEC_GSS, NFS version 4, a cache that outlives the process (`layer/cache`).
//!
//! Reading order: `export`, `mounting`, `session`, `nodes`, `calls`, `data`.
#![forbid(unsafe_code)]

mod background;
mod caller;
mod calls;
mod data;
mod export;
mod failure;
mod listed_ahead;
mod listing;
mod mounting;
mod nodes;
mod openings;
mod options;
mod root;
mod server;
mod session;

pub use export::NfsExport;
pub use mounting::MountError;
pub use options::{AttributeTimes, Options};
pub use server::{Ports, Server, Transport};
