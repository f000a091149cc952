//! What every server and client runs on: a bounded pool of threads, tasks, buffers, listening sockets, signals.
//!
//! - [`pool`] runs work that blocks on a bounded number of threads; [`task`] polls futures to their end on the threads that wake them.
//! - [`buffers`] lends memory to calls within limits for each client; [`waiters`] queues those for which there is none.
//! - [`descriptors`] shares out what file descriptors the process may have.
//! - [`spin`] says how long a thread polls before it sleeps; [`seldom`] how often a log line may appear.
//! - [`listener`] binds sockets in the file system; [`signals`] waits for the signals that end a process.
//! - [`signing_keys`] are what a server signs handles with.
//!
//! Not here: connections (`host/links`, `host/rpc`), devices (`host/vhost`), what an operator sees of a process (`host/service`).
//!
//! Main types: [`Pool`](pool::Pool), [`Buffers`](buffers::Buffers), [`Account`](descriptors::Account), [`Listener`](listener::Listener),
//! [`Keys`](signing_keys::Keys).
//!
//! Reading order: [`pool`], [`task`], [`buffers`], [`waiters`]; the rest as needed.
#![forbid(unsafe_code)]

pub mod buffers;
pub mod descriptors;
pub mod listener;
pub mod pool;
pub mod seldom;
pub mod signals;
pub mod signing_keys;
pub mod spin;
mod sync;
pub mod task;
pub mod waiters;

pub use sync::lock;
