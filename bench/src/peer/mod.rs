//! Measured programs: Tombolo and its peers. Each runs in its own process, and ends when its [`Server`] is
//! dropped.

mod at_socket;
mod control;
mod find;
mod mount;
pub mod nbd;
mod nfs;
mod server;
mod shm;
pub mod virtio_blk;
pub mod virtio_fs;

pub use at_socket::AtSocket;
pub use control::Requests;
pub use find::{Program, find, in_checkout, this_program};
pub use mount::Mount;
pub use nfs::{Nfs, free_port, is_listening, is_listening_in};
pub use server::Server;
pub use shm::Shm;
