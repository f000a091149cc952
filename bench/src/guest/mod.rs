//! A guest's FUSE client in this process: it speaks to a virtio-fs server straight on the queues, as a guest's kernel
//! would, with no virtual machine in between.

mod client;
mod work;

pub use client::{Guest, Request, with_nul};
pub use tombolo_vhost_driver::Wait;
pub use work::{
    CreateOut, CreateUnlink, Getattr, Lookup, OpenRelease, Outstanding, Read, SharedGuest, Write, create_args,
};

pub(crate) use client::wrong;
