//! Running futures: many at a time, on few threads.
//!
//! [`block_on`] waits for one. A [`Crew`] is a handful of threads that go on with whatever task can go on; [`Permits`] bound
//! how much is under way at once, and a [`Group`] tells when all that was begun has ended. [`Window`] keeps a number of
//! operations of one kind under way and gives their results back in order.

mod crew;
mod group;
mod permits;
mod window;

pub(crate) use crew::{Crew, Spawner};
pub(crate) use group::Group;
pub(crate) use permits::{Permit, Permits};
pub use tombolo_core::block_on;
pub(crate) use window::Window;
