//! vhost-user: serving a virtio device to a virtual machine from a process of its own.
//!
//! The virtual machine monitor (the *front end* of the protocol) connects to a unix socket and hands over its
//! guest's memory and virtqueues; this crate answers the protocol, walks the queues, and gives a [`Device`]
//! one [`Chain`] at a time, checked, as [`Source`](tombolo_mem::Source) and [`Sink`](tombolo_mem::Sink) over
//! the guest's own pages. Split virtqueues only, with indirect descriptors and event index (virtio 1.2,
//! chapters 2.7 and 5; the vhost-user specification of QEMU).
//!
//! - [`Device`], [`Chain`], [`ChainToken`]: what a device sees. A chain may be completed later, from any
//!   thread, in any order.
//! - [`ConfigChange`]: how a device tells a guest that its configuration space has changed.
//! - [`Server`], [`Settings`]: a socket that serves guests one after the other and side by side.
//! - [`GuestMemory`], [`DescriptorTable`]: the guest's addresses, and the walk along its descriptors.
//! - [`keeper`]: servers that follow each other while their guests notice nothing.
//! - [`QueueFault`]: how a guest can break the rules. It stops its own queue, with one line in the log.
//!
//! Requests in flight are tracked across a restart of this process, for front ends and devices that can
//! (`inflight`); what is written to a guest that migrates live is logged (`dirty_log`). Not here: packed
//! rings. `docs/decisions/vhost-own-queues.md` has the reasons for a walk of our own.
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
