//! The foundation of servers and clients: a bounded pool of threads, tasks, buffers, listening sockets,
//! signals.
//!
//! - [`thread_pool`] runs blocking work on a bounded number of threads; [`task`] polls futures to completion
//!   on the threads that wake them, [`to_its_end`] those whose answer may be abandoned; [`promise`] is a
//!   value awaited by several of them, [`pending`] the end of all work on a key.
//! - [`buffer_pool`] lends memory to calls within limits for each client; [`waiters`] queues calls for which
//!   there is none; [`free_list`] retains objects for reuse.
//! - [`descriptors`] divides the process's file descriptors.
//! - [`pace`] decides whether work is quick enough to bypass the pool; [`polling`] how long a thread polls
//!   before it sleeps; [`rate_limit`] how often a log message may appear. [`time_slices`] reduces the
//!   scheduling latency of threads.
//! - [`listener`] binds sockets in the file system; [`signals`] waits for the signals that end a process,
//!   and for user signals.
//! - [`send_queue`] sends messages over a stream from any thread without blocking; [`receive_buffer`] buffers
//!   a stream's input.
//! - [`names`] looks up users, groups and hosts, for which the C library would load modules.
//! - [`rows`] encodes rows of databases on disk; [`signing_keys`] contains the keys that sign handles;
//!   [`private`] creates files for one user.
//!
//! Non-goals: connections (`host/links`, `host/rpc`), devices (`host/vhost`), the operator's interface
//! (`host/service`).
//!
//! Main types: [`ThreadPool`](thread_pool::ThreadPool), [`Buffers`](buffer_pool::Buffers),
//! [`DescriptorBudget`](descriptors::DescriptorBudget), [`Listener`](listener::Listener),
//! [`Keys`](signing_keys::Keys).
//!
//! Reading order: [`thread_pool`], [`task`], [`buffer_pool`], [`waiters`]; others as needed.
#![forbid(unsafe_code)]

pub mod buffer_pool;
pub mod descriptors;
pub mod free_list;
pub mod listener;
pub mod names;
pub mod pace;
pub mod pending;
pub mod polling;
pub mod private;
pub mod promise;
pub mod rate_limit;
pub mod receive_buffer;
pub mod rows;
pub mod send_queue;
pub mod signals;
pub mod signing_keys;
pub mod task;
pub mod thread_pool;
pub mod time_slices;
mod to_its_end;
pub mod waiters;

pub use to_its_end::to_its_end;
pub use tombolo_core::lock;
