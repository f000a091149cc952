//! An NFS version 3 client: any server's export, behind the waist.
//!
//! The caller's thread encodes a call and sends it; one receiver drains all replies of a wake-up and runs the
//! tasks that waited for them (`tombolo_host_rpc::client`). So many operations are pending and no thread
//! waits. File data are sent from the caller's memory and received into it.
//!
//! - [`NfsExport`] is a mounted export: [`NfsExport::mount`] with a [`Server`], a path and [`Options`].
//! - Its sessions implement the waist. Attributes are cached for as long as [`AttributeTimes`] says; an open
//!   sees what was closed before it (close-to-open). What is written is sent at once and answered at once,
//!   and is on stable storage when it is flushed; `data` keeps it until then. A file that is removed while
//!   open keeps a name until it is closed.
//!
//! Not here: locks (NLM), RPCSEC_GSS, NFS version 4, a cache that outlives the process (`layer/cache`).
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
