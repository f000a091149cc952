//! Images of a directory after a power loss, for tests of crash safety.
//!
//! A test runs itself again under strace ([`record`], [`recorded`]), which records all system calls that
//! change one directory, in order and with their data. From the [`Log`], images of the directory are made
//! ([`each_image`]): the machine stops after any call, and parts of what was not synced by then are lost.
//! `docs/testing.md` defines the possible losses.
//!
//! An unknown call fails the test, and the recorded calls must add up to the final directory: so no change is
//! missed.
//!
//! Non-goals: stores through shared mappings (SQLite recreates the index of its log, a file `*-shm`, after a
//! crash; it is in no image), owners and modes of files, and times that no program has read. Child processes
//! are recorded too.
//!
//! Reading order: `strace` (text), `log` (effects of the calls), `image`, `run`.
#![forbid(unsafe_code)]

mod image;
mod log;
mod run;
mod strace;

pub use image::{Choice, Image};
pub use log::Log;
pub use run::{each_image, each_image_at, mark, record, recorded};
