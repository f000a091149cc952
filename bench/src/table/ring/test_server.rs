//! Server of links in this process, for tests.

use std::path::Path;
use std::sync::Arc;

use tombolo_back_local_dir::{LocalDir, Options as DirOptions};
use tombolo_front_vrpc_server::{Options, VrpcServer};
use tombolo_host_links::listen::{LinkListener, ListenOptions};
use tombolo_host_links::rendezvous::MemoryListener;
use tombolo_host_links::server::Server as Links;
use tombolo_host_links::shared_memory::{MemoryLocation, SharedMemory};
use tombolo_shm::doorbell::Mode;
use tombolo_shm::link::Limits;

use super::session::{At, Endpoint};

/// Listens for links to `shared` at a socket, until the second value is dropped.
pub fn listen(shared: &Path, socket: &Path, mode: Mode) -> (Endpoint, LinkListener) {
    let options = ListenOptions { mode, ..ListenOptions::default() };
    let listener = LinkListener::start(socket, links(shared), options).unwrap();
    (Endpoint { at: At::Socket(socket.to_owned()), mode, bell: None }, listener)
}

/// Serves polling links to `shared` over `bytes` of a file.
pub fn sit(shared: &Path, file: &Path, bytes: u64) -> MemoryListener {
    let memory = SharedMemory::to_serve(&MemoryLocation::Mmapper(file.to_owned()), Some(bytes)).unwrap();
    MemoryListener::start(memory, links(shared), Limits::default(), Mode::Poll, "bench").unwrap()
}

fn links(shared: &Path) -> Arc<Links> {
    let export = Arc::new(LocalDir::open(shared, DirOptions::default()).unwrap());
    Arc::new(Links::new(Arc::new(VrpcServer::new().with_export("bench", export, Options::default()))))
}
