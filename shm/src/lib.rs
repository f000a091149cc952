//! Links over shared memory between two domains: a process and another, a guest and its host.
//!
//! Each side owns one region, which it alone writes, and reads the other's. Requests and answers are slots of
//! one cache line in rings; what does not fit lies in buffers beside them. Whatever a peer can write is
//! copied out once and checked then.
//!
//! Not here: what a request means (`wire/vrpc`), and threads, sockets and policies (`host/links/src`).
//!
//! Reading order: [`link`], [`region`], [`address`], [`ring`], [`doorbell`], [`area`], [`window`].

pub mod address;
pub mod area;
pub mod cells;
pub mod doorbell;
pub mod link;
pub mod region;
pub mod ring;
pub mod window;
