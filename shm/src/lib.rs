//! Links over shared memory between two domains: two processes, a guest and its host, or two guests.
//!
//! Each side owns one region, which only it writes, and reads the other's. Requests and answers are slots of
//! one cache line in rings; larger messages use buffers outside the rings. What a peer writes for this side
//! to interpret is copied once and then checked.
//!
//! Non-goals: the meaning of requests (`wire/vrpc`); threads, sockets and policies (`host/links/src`).
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
