//! The other side: local-dir over links, in a process of its own.

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

/// The ways to wait that are measured; the server waits as its client does, so each has a socket.
pub const MODES: [Mode; 3] = [Mode::Poll, Mode::Event, Mode::Adaptive];
/// Those of them that sleep.
pub const SLEEPERS: [Mode; 2] = [Mode::Event, Mode::Adaptive];
/// Of each file that is shared memory.
const MEMORY_BYTES: u64 = 16 << 20;

/// Where clients meet the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EndpointKind {
    /// At sockets, one for each way to wait.
    Sockets,
    /// In files that both sides can write, one for each way to sleep: there are no doorbells.
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

/// The server's process.
pub struct LinkServer {
    server: Server,
    folder: PathBuf,
    kind: EndpointKind,
}

impl LinkServer {
    /// This program once more, which serves `shared`, and is met in `folder`.
    pub fn start(shared: &Path, folder: &Path, kind: EndpointKind) -> Result<Self> {
        let mut command = Command::new(this_program()?);
        command.arg("ring-server").arg(shared).arg(folder);
        command.args(kind.to_possible_value().map(|value| value.get_name().to_owned()));
        let mut server = Server::start("tombolo-bench ring-server", &mut command)?;
        let ready = folder.join(READY);
        server.wait_until("links", || ready.exists())?;
        Ok(Self { server, folder: folder.to_owned(), kind })
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.server.id()
    }

    /// Where clients that wait in that mode connect.
    pub fn endpoint(&self, mode: Mode) -> Endpoint {
        endpoint(&self.folder, self.kind, mode)
    }
}

/// The file that says that all endpoints are open.
const READY: &str = "ready";

/// In the folder of a server, where clients that wait in that mode connect.
pub fn endpoint(folder: &Path, kind: EndpointKind, mode: Mode) -> Endpoint {
    Endpoint { at: kind.at(folder.join(mode.name())), mode }
}

/// What accepts links; dropping it ends that.
pub type Listeners = (Vec<LinkListener>, Vec<MemoryListener>);

/// Listens for links to `shared`, for each way to wait. Dropping what it gives ends that.
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

/// Local-dir, or what another server offers at its socket, to be had over links.
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
        // Its part says so.
        Err(_) => links,
    }))
}

/// Makes links over so many bytes of memory, which both sides can write.
pub fn sit(place: &MemoryLocation, bytes: u64, links: &Arc<Links>, mode: Mode) -> Result<MemoryListener> {
    let memory = SharedMemory::to_serve(place, Some(bytes)).map_err(|error| wrong("memory", &error))?;
    let listener = MemoryListener::start(memory, Arc::clone(links), Limits::default(), mode, "bench");
    listener.map_err(|error| wrong("links over memory", &error))
}

/// As [`listen`], until a signal ends the process.
pub fn serve(shared: &Path, folder: &Path, kind: EndpointKind) -> Result<()> {
    let _listeners = listen(shared, folder, kind)?;
    let ready = folder.join(READY);
    std::fs::write(&ready, "").doing_to("write", &ready)?;
    loop {
        std::thread::park();
    }
}
