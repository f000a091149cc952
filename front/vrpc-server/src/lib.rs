//! Server of exports to domains that share memory: requests of links to the file-system waist.
//!
//! [`VrpcServer`] opens a session for each link: it attaches to the requested export, then decodes requests
//! (`tombolo_wire_vrpc`), calls the file system and replies. An answer that is ready at once is sent by the
//! link's thread, without an allocation for the most frequent operations; otherwise the request continues as
//! a task, and the thread that completes it replies. Bulk data is not copied: a WRITE's data is read from the
//! client's memory, a READ's data is placed in this domain's shared memory where the client requested it.
//!
//! A peer may be hostile. A protocol violation (docs/protocols/vrpc.md, "What ends a link") ends its link; an
//! unreasonable request gets an error. The end of a link interrupts its pending requests, and the session's
//! look-ups, openings and locks are released.
//!
//! A peer that reconnects gets its next session when no request of the previous one is running
//! (`reconnect_fence`), so its requests take effect in the order of its links.
//!
//! Non-goals: rings, doorbells and memory (`tombolo_host_links`, `tombolo_shm`), the policy of links
//! (`tombolo_host_links::policy`).
//!
//! Main types: [`VrpcServer`], [`Options`].
//!
//! Reading order: `server`, `reconnect_fence`, `session`, `turn`, `exchange`, `operations`.
#![forbid(unsafe_code)]

mod buffers;
mod callers;
mod client_id;
mod exchange;
mod handle_signature;
mod operations;
mod options;
mod parts;
mod pending;
mod reconnect_fence;
mod server;
mod session;
mod turn;

pub use options::Options;
pub use server::VrpcServer;
