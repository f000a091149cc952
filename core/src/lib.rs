//! The contracts ("waists") of file systems and of disks, with no I/O and no protocol.
//!
//! Front ends (FUSE, NFS, virtio-blk) call a waist; back ends (a local directory, memory, an image file)
//! answer it; layers (statistics, delay, cache) are a waist over a waist. None of them depends on another.
//!
//! Non-goals: byte layouts (`wire/`), threads and sockets (`host/`), system calls (`sys/`).
//!
//! Reading order: [`fs::FileSystem`], then [`Answer`] (immediate and pending results), [`Ctx`] (the request's
//! context), [`fs::Attr`] and [`fs::DirPage`] (results), [`Error`]; then [`block::BlockDevice`].
#![forbid(unsafe_code)]

mod answer;
pub mod block;
mod block_on;
mod budget;
mod counters;
mod ctx;
mod errno;
mod error;
pub mod fs;
mod interrupt;
mod squash;
mod stability;
mod sync;
mod wakers;

pub use answer::{Answer, Later};
pub use block_on::{block_on, unpark_waker};
pub use budget::{Budget, Limits, Permit, Resource};
pub use counters::Counter;
pub use ctx::{ClientId, Ctx, Identity, KeyProperties, RequestId, RequestKey, SessionId, Want};
pub use error::{Error, Result};
pub use interrupt::{Interrupt, Raised};
pub use squash::{NO_ID, Squash, SquashMode};
pub use stability::Stability;
pub use sync::lock;
#[doc(hidden)]
pub use tombolo_mem as mem;
pub use wakers::Wakers;
