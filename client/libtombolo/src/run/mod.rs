//! Execution of many futures on few threads.
//!
//! [`block_on`] waits for one future. A [`ThreadPool`] runs tasks on a handful of threads; [`Permits`] bound
//! the number of tasks in progress, and a [`Group`] waits for the end of all. [`Window`] keeps operations of
//! one kind in flight and returns their results in order.

mod group;
mod permits;
mod thread_pool;
mod window;

pub(crate) use group::Group;
pub(crate) use permits::{Permit, Permits};
pub use thread_pool::{Spawner, ThreadPool};
pub use tombolo_core::block_on;
pub(crate) use window::Window;
