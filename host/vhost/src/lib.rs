//! vhost-user back end: serves a virtio device to a virtual machine from a separate process.
//!
//! The virtual machine monitor (the *front end* of the protocol) connects to a UNIX socket and passes its
//! guest's memory and virtqueues. This crate implements the protocol, walks the queues, and passes the
//! checked [`Chain`]s of each queue one at a time to a [`Device`], as [`Source`](tombolo_mem::Source) and
//! [`Sink`](tombolo_mem::Sink) over the guest's own pages. It supports split virtqueues with indirect
//! descriptors and event index (virtio 1.2, sections 2.7 and 5; the vhost-user specification of QEMU).
//!
//! - [`Device`], [`Chain`], [`ChainToken`]: the device's interface. A chain may be completed later, from any
//!   thread, in any order.
//! - [`ConfigChange`]: notification of a changed configuration space.
//! - [`Server`], [`Settings`]: a socket at which guests connect. They run concurrently or one at a time.
//! - [`GuestMemory`], [`DescriptorTable`]: guest addresses, and the walk along descriptors.
//! - [`keeper`]: a relay that lets one server replace another under connected guests.
//! - [`QueueFault`]: faults of a queue, mostly protocol violations by its guest. They stop that queue alone,
//!   with one line in the log.
//!
//! Requests under way survive a restart of this process if the front end and the device support in-flight
//! tracking (`inflight`); writes to a live-migrating guest are logged (`dirty_log`). Non-goal: packed rings.
//! Rationale for a custom queue walk: `docs/decisions/vhost-own-queues.md`.
//!
//! Reading order: `device`, `chain`, `config_change`, `memory`, `walk`, `ring`, `queue`, `inflight`,
//! `dirty_log`, `worker`, `queue_control`, `turns`, `backend`, `server`; `fd_store`, `keeper`.
#![forbid(unsafe_code)]

mod backend;
mod chain;
mod config_change;
mod device;
mod dirty_log;
mod fault;
mod fd_store;
mod inflight;
pub mod keeper;
mod memory;
mod notifier;
mod queue;
mod queue_control;
mod ring;
mod server;
mod sharing;
mod turns;
mod walk;
mod worker;

pub use chain::{Chain, ChainToken};
pub use config_change::ConfigChange;
pub use device::{ChainLimits, Device, QueueIndex};
pub use fault::QueueFault;
pub use fd_store::{FdKey, FdStore};
pub use memory::{GuestMemory, MEMORY_SLOTS_MAX, MemoryError, MemorySlot};
pub use server::{GuestId, MakeDevice, Server, Settings};
pub use walk::DescriptorTable;
