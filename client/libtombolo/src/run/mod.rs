//! Running futures: many at a time, on few threads.
//!
//! [`block_on`] waits for one. A [`ThreadPool`] is a handful of threads that run whatever task can run;
//! [`Permits`] bound how much is under way at once, and a [`Group`] tells when all that was begun has ended.
//! [`Window`] keeps a number of operations of one kind under way and gives their results back in order.

mod group;
mod permits;
mod thread_pool;
mod window;

pub(crate) use group::Group;
pub(crate) use permits::{Permit, Permits};
pub use thread_pool::{Spawner, ThreadPool};
pub use tombolo_core::block_on;
pub(crate) use window::Window;
