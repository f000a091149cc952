//! Exports for domains that share memory: what a link's requests ask of the file-system waist, and the
//! answers.
//!
//! [`VrpcServer`] opens a session for each link: it attaches to the export that the peer asks for, and from
//! then on decodes requests (`tombolo_wire_vrpc`), calls the file system and answers. What the file system
//! answers at once is answered on the link's thread, without an allocation for the operations that matter
//! most; the rest goes on as a task, and the thread that finishes it sends the answer. Data never pass
//! through here: a WRITE's lie in the client's memory, a READ's go where the client wants them in this
//! side's.
//!
//! A peer may be hostile. What breaks the protocol (docs/protocols/vrpc.md, "What ends a link") cuts its
//! link; what is merely unreasonable gets an error. When the link ends, whatever still waits is interrupted,
//! and with the session go its look-ups, openings and locks.
//!
//! A peer that links again gets its next session when nothing of its former one runs any more (`fence`): its
//! requests come in the order of its links.
//!
//! Not here: rings, doorbells and memory (`tombolo_host_links`, `tombolo_shm`), the policy of links
//! (`tombolo_host_links::policy`).
//!
//! Main types: [`VrpcServer`], [`Options`].
//!
//! Reading order: `server`, `fence`, `session`, `exchange`, `operations`.
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

pub use options::Options;
pub use server::VrpcServer;
