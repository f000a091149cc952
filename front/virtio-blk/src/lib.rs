//! virtio-blk device for a guest, over any block device of `tombolo_core::block` (virtio 1.2, section 5.2).
//!
//! [`VirtioBlk`] is the device; `tombolo-host-vhost` walks the queues and delivers one checked descriptor
//! chain at a time. Data is transferred directly from and to the guest's pages; a request's header is copied
//! out once before it is evaluated. An invalid chain gets an error status if it has space for one, and has no
//! other effect.
//!
//! Main types: [`VirtioBlk`], [`Options`], [`DeviceError`].
//!
//! Non-goals: lifetime, zones and secure erase, which are not offered; repeating unanswered requests after a
//! restart (`tombolo-host-vhost`).
//!
//! Reading order: `device`, `request`, `config`.
#![forbid(unsafe_code)]

mod config;
mod device;
mod request;

pub use config::Features;
pub use device::{DeviceError, Options, VirtioBlk};
pub use request::SERIAL_BYTES_MAX;
