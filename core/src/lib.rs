//! The waists of Tombolo: what a file system **is**, with no I/O and no protocol.
//!
//! Front ends (FUSE, NFS, shared memory) call a waist; back ends (a local directory, memory, an NFS client) answer it;
//! layers (statistics, delay, cache) are a waist over a waist. None of them knows who stands on the other side.
//!
//! Not here: byte layouts (`wire/`), threads and sockets (`host/`), system calls (`sys/`).
//!
//! Reading order: [`fs::FileSystem`], then [`fs::Answer`] (how an operation answers at once or later), [`fs::Ctx`]
//! (on whose behalf), [`fs::Attr`] and [`fs::DirPage`] (what it answers with), [`fs::Error`].
#![forbid(unsafe_code)]

pub mod fs;
