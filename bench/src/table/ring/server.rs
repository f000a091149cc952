//! Peer: local-dir over links, in a separate process.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use clap::ValueEnum;
use tombolo_back_local_dir::{LocalDir, Options as DirOptions};
use tombolo_back_vrpc_client::VrpcExport;
use tombolo_core::fs::Export;
use tombolo_front_vrpc_server::{Options, VrpcServer};
use tombolo_host_links::listen::{LinkListener, ListenOptions};
use tombolo_host_links::rendezvous::MemoryListener;
use tombolo_host_links::server::Server as Links;
use tombolo_host_links::shared_memory::{MemoryLocation, SharedMemory};
use tombolo_shm::doorbell::Mode;
use tombolo_shm::link::{Limits, Protocol};

use super::endpoint::{At, Endpoint};
use super::{chain, nfs, wrong};
use crate::error::{Doing, Result};
use crate::peer::{Server, this_program};

/// Measured waiting modes; the server uses its client's mode, so each has a socket.
pub const MODES: [Mode; 3] = [Mode::Poll, Mode::Event, Mode::Adaptive];
/// Modes that sleep.
pub const SLEEPERS: [Mode; 2] = [Mode::Event, Mode::Adaptive];
/// Size of each shared-memory file.
const MEMORY_BYTES: u64 = 16 << 20;

/// Kind of endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EndpointKind {
    /// Sockets, one per mode.
    Sockets,
    /// Files that both sides can write, one per sleeping mode, without doorbells.
    Memory,
}

impl EndpointKind {
    pub fn at(self, path: PathBuf) -> At {
        match self {
            EndpointKind::Sockets => At::Socket(path),
            EndpointKind::Memory => At::Memory(MemoryLocation::File(path)),
        }
    }
}

/// Process of the server.
pub struct LinkServer {
    server: Server,
    folder: PathBuf,
    kind: EndpointKind,
}

impl LinkServer {
    /// Starts this program as a server of `shared`, with endpoints in `folder`.
    pub fn start(shared: &Path, folder: &Path, kind: EndpointKind) -> Result<Self> {
        let mut command = Command::new(this_program()?);
        command.arg("ring-server").arg(shared).arg(folder);
        command.args(kind.to_possible_value().map(|value| value.get_name().to_owned()));
        let mut server = Server::start("tombolo-bench ring-server", &mut command)?;
        let ready = folder.join(READY);
        server.wait_until("links", || ready.exists())?;
        Ok(Self { server, folder: folder.to_owned(), kind })
    }

    /// Returns its process id.
    pub fn id(&self) -> u32 {
        self.server.id()
    }

    /// Returns the endpoint for clients in that mode.
    pub fn endpoint(&self, mode: Mode) -> Endpoint {
        endpoint(&self.folder, self.kind, mode)
    }
}

/// Name of the file that shows that all endpoints are open.
const READY: &str = "ready";

/// Returns the endpoint in a server's folder for clients in that mode.
pub fn endpoint(folder: &Path, kind: EndpointKind, mode: Mode) -> Endpoint {
    Endpoint { at: kind.at(folder.join(mode.name())), mode }
}

/// Listeners, which end on drop.
pub type Listeners = (Vec<LinkListener>, Vec<MemoryListener>);

/// Listens for links to `shared`, for each mode, until the result is dropped.
pub fn listen(shared: &Path, folder: &Path, kind: EndpointKind) -> Result<Listeners> {
    let links = links(shared)?;
    let mut listeners = Listeners::default();
    match kind {
        EndpointKind::Sockets => {
            for mode in MODES {
                let limits = Limits { protocols: links.protocols(), ..Limits::default() };
                let options = ListenOptions { limits, mode, ..ListenOptions::default() };
                let listener = LinkListener::start(&folder.join(mode.name()), Arc::clone(&links), options);
                listeners.0.push(listener.map_err(|error| wrong("listen for links", &error))?);
            }
        }
        EndpointKind::Memory => {
            for mode in SLEEPERS {
                let place = MemoryLocation::File(folder.join(mode.name()));
                listeners.1.push(sit(&place, MEMORY_BYTES, &links, mode)?);
            }
        }
    }
    Ok(listeners)
}

/// Creates a link service for a local directory, or for another server's export at its socket.
pub fn links(shared: &Path) -> Result<Arc<Links>> {
    let export: Arc<dyn Export> = match chain::is_socket(shared) {
        true => Arc::new(VrpcExport::new(Endpoint { at: At::Socket(shared.to_owned()), mode: Mode::Event })),
        false => {
            let dir = LocalDir::open(shared, DirOptions::default());
            Arc::new(dir.map_err(|error| wrong("local-dir", &error))?)
        }
    };
    let service = VrpcServer::new().with_export(super::EXPORT, export, Options::default());
    let links = Links::new(Arc::new(service));
    Ok(Arc::new(match nfs::service(shared) {
        Ok(nfs) => links.speaking(Protocol::OncRpc, nfs),
        // Reported by its part.
        Err(_) => links,
    }))
}

/// Serves links over `bytes` of memory that both sides can write.
pub fn sit(place: &MemoryLocation, bytes: u64, links: &Arc<Links>, mode: Mode) -> Result<MemoryListener> {
    let memory = SharedMemory::to_serve(place, Some(bytes)).map_err(|error| wrong("memory", &error))?;
    let listener = MemoryListener::start(memory, Arc::clone(links), Limits::default(), mode, "bench");
    listener.map_err(|error| wrong("links over memory", &error))
}

/// Serves like [`listen`], until a signal ends the process.
pub fn serve(shared: &Path, folder: &Path, kind: EndpointKind) -> Result<()> {
    let _listeners = listen(shared, folder, kind)?;
    let ready = folder.join(READY);
    std::fs::write(&ready, "").doing_to("write", &ready)?;
    loop {
        std::thread::park();
    }
}
