//! What every server and client runs on: a bounded pool of threads, tasks, buffers, listening sockets,
//! signals.
//!
//! - [`thread_pool`] runs work that blocks on a bounded number of threads; [`task`] polls futures to their
//!   end on the threads that wake them, [`to_its_end`] those whose answer may be given up; [`promise`] is a
//!   value that several of them wait for, [`pending`] the end of all that is done for something.
//! - [`buffer_pool`] lends memory to calls within limits for each client; [`waiters`] queues those for which
//!   there is none; [`free_list`] keeps objects for their next use.
//! - [`descriptors`] shares out what file descriptors the process may have.
//! - [`pace`] says whether work is quick enough to be done without a pool; [`polling`] how long a thread
//!   polls before it sleeps; [`rate_limit`] how often a log line may appear.
//! - [`listener`] binds sockets in the file system; [`signals`] waits for the signals that end a process.
//! - [`send_queue`] sends messages over a stream from any thread without waiting; [`receive_buffer`] is
//!   between a stream and those who want so many bytes of it.
//! - [`names`] looks up users, groups and hosts, of which the C library would load modules.
//! - [`rows`] are what databases on the disk keep; [`signing_keys`] are what a server signs handles with;
//!   [`private`] are files for one user.
//!
//! Not here: connections (`host/links`, `host/rpc`), devices (`host/vhost`), what an operator sees of a
//! process (`host/service`).
//!
//! Main types: [`ThreadPool`](thread_pool::ThreadPool), [`Buffers`](buffer_pool::Buffers),
//! [`DescriptorBudget`](descriptors::DescriptorBudget), [`Listener`](listener::Listener),
//! [`Keys`](signing_keys::Keys).
//!
//! Reading order: [`thread_pool`], [`task`], [`buffer_pool`], [`waiters`]; the rest as needed.
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
mod sync;
pub mod task;
pub mod thread_pool;
pub mod time_slices;
mod to_its_end;
pub mod waiters;

pub use sync::lock;
pub use to_its_end::to_its_end;
