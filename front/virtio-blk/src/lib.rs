//! virtio-blk: a disk of the block waist for a guest (virtio 1.2, chapter 5.2).
//!
//! [`VirtioBlk`] is the device; `tombolo-host-vhost` walks the queues and hands it one checked descriptor
//! chain at a time. Data go from and to the guest's own pages; a request's header is copied out once before
//! it is looked at. What a chain says that cannot be is answered with an error status, and nothing else
//! happens.
//!
//! - [`VirtioBlk`], [`Options`], [`DeviceError`].
//!
//! Not here: lifetime, zones and secure erase, which are not offered; requests under way across a restart.
//!
//! Reading order: `device`, `request`, `config`.
#![forbid(unsafe_code)]

mod config;
mod device;
mod request;

pub use config::Features;
pub use device::{DeviceError, Options, VirtioBlk};
pub use request::SERIAL_BYTES_MAX;
