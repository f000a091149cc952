//! The FUSE front end: one session, two transports.
//!
//! [`session`] turns the requests of one kernel into calls of the file-system waist, and knows no transport.
//! [`dev`] mounts on this host through `/dev/fuse`; [`virtio`] serves a guest through a virtio-fs device.
//!
//! Not here: the wire format (`wire/fuse`), virtqueues (`host`), what a file system does (`back/`).
//!
//! Reading order: `session`, `session/ops`, then a transport; `kept`, what of a guest's session outlives the
//! process.
#![forbid(unsafe_code)]

pub mod dev;
pub mod kept;
pub mod session;
pub mod virtio;
