//! What power loss may leave of a directory, for tests of what must survive it.
//!
//! A test runs itself again below strace ([`record`], [`recorded`]), with all system calls recorded that
//! change one directory, in their order and with their data. Of the [`Log`] images of the directory are made
//! ([`each_image`]): the machine stops after any call, and of what was not synced by then parts are lost.
//! What may be lost is said in `docs/testing.md`.
//!
//! A call that the recorder does not know fails the test, and what it has seen must add up to the directory
//! as it is in the end: so nothing changes it unseen.
//!
//! Not here: stores through shared mappings (SQLite's index of its log, a file `*-shm`, is made anew after a
//! crash and is in no image), owners and modes of files, and times that no program has looked at. Processes
//! that are started are recorded too.
//!
//! Reading order: `strace` (text), `log` (what the calls have done), `image`, `run`.
#![forbid(unsafe_code)]

mod image;
mod log;
mod run;
mod strace;

pub use image::{Choice, Image};
pub use log::Log;
pub use run::{each_image, each_image_at, mark, record, recorded};
