//! Measured programs: Tombolo and its peers. Each runs in its own process, and ends when its [`Server`] is
//! dropped.

mod at_socket;
mod control;
mod find;
mod mount;
mod nfs;
mod server;
mod shm;

pub use at_socket::AtSocket;
pub use control::Requests;
pub use find::{Program, find, in_checkout, this_program};
pub use mount::Mount;
pub use nfs::{Nfs, free_port};
pub use server::{Server, completed};
pub use shm::Shm;
