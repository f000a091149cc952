//! QEMU as the VMM of a guest: command line of a machine whose memory is a file and whose disk is a
//! vhost-user device ([`Machine`]); monitor client ([`Monitor`]); saving, resuming, and plugging of network
//! card, identity and shares ([`migration`], [`network`], [`identity`], [`shares`]). [`process`] starts QEMU,
//! and [`Events`] reports the reason for its end.
//!
//! A machine is saved without its memory (`x-ignore-shared`), which remains in its file. The saved *device
//! state* is small, mostly less than 1 MB.
//!
//! Non-goals: location of files, supervision of processes.
//!
//! Reading order: `machine`, `processor`, `monitor`, `migration`, `network`, `identity`, `shares`, `process`,
//! `end`.
#![forbid(unsafe_code)]

mod end;
pub mod identity;
mod machine;
pub mod migration;
mod monitor;
pub mod network;
pub mod process;
mod processor;
pub mod shares;

pub use end::{End, Events};
pub use machine::{Boot, Launch, Machine, UnknownWord};
pub use monitor::{LINE_BYTES_MAX, Monitor, MonitorError};
