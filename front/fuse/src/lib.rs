//! FUSE front end: one session type, two transports.
//!
//! [`session`] translates one kernel's requests into calls of the file-system waist and is independent of the
//! transport. [`dev`] mounts on this host through `/dev/fuse`; [`virtio`] is a virtio-fs device for a guest.
//!
//! Non-goals: the wire format (`wire/fuse`), virtqueues (`host/vhost`), file-system behaviour (`back/`).
//!
//! Reading order: `session`, `session/ops`, then a transport; `persistent` holds the part of a guest's
//! session that survives a server restart.
#![forbid(unsafe_code)]

pub mod dev;
pub mod persistent;
pub mod session;
pub mod virtio;
