//! QEMU as the VMM of a guest: the command line of a machine whose memory is a file and whose disk is a
//! vhost-user device ([`Machine`]), a client of its monitor ([`Monitor`]), and what is done there to save a
//! machine, to go on with it, and to change its network card, its identity and its shares ([`migration`],
//! [`network`], [`identity`], [`shares`]). [`process`] starts it, and [`Events`] says why it ended.
//!
//! A machine is saved without its memory (`x-ignore-shared`): that stays in its file. What is left, the
//! *device state*, has less than a megabyte.
//!
//! Not here: where files lie, and what becomes of processes.
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
