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
use tombolo_host_links::memory::{CommonMemory, MemoryPlace};
use tombolo_host_links::seated::MemoryListener;
use tombolo_host_links::server::Server as Links;
use tombolo_shm::doorbell::Mode;
use tombolo_shm::link::{Limits, Protocol};

use super::door::{At, Door};
use super::{chain, nfs, wrong};
use crate::error::{Doing, Result};
use crate::peer::Server;

/// The ways to wait that are measured; the server waits as its client does, so each has a socket.
pub const MODES: [Mode; 3] = [Mode::Poll, Mode::Event, Mode::Adaptive];
/// Those of them that sleep.
pub const SLEEPERS: [Mode; 2] = [Mode::Event, Mode::Adaptive];
/// Of each file that is memory in common.
const MEMORY_BYTES: u64 = 16 << 20;

/// Where clients meet the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Meeting {
    /// At sockets, one for each way to wait.
    Sockets,
    /// In files that both sides can write, one for each way to sleep: there are no doorbells.
    Memory,
}

/// The server's process.
pub struct Serving {
    server: Server,
    folder: PathBuf,
    meeting: Meeting,
}

impl Serving {
    /// This program once more, which serves `shared`, and is met in `folder`.
    pub fn start(shared: &Path, folder: &Path, meeting: Meeting) -> Result<Self> {
        let program = std::env::current_exe().doing(|| "find this program".to_owned())?;
        let mut command = Command::new(program);
        command.arg("ring-server").arg(shared).arg(folder);
        if let Some(meeting) = meeting.to_possible_value() {
            command.arg(meeting.get_name());
        }
        let mut server = Server::start("tombolo-bench ring-server", &mut command)?;
        let ready = folder.join(READY);
        server.wait_until("links", || ready.exists())?;
        Ok(Self { server, folder: folder.to_owned(), meeting })
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.server.id()
    }

    /// The way to it for those who wait in that way.
    pub fn door(&self, mode: Mode) -> Door {
        door(&self.folder, self.meeting, mode)
    }
}

/// The file that says that all doors are open.
const READY: &str = "ready";

/// In the folder of a server, the way in for those who wait in that way.
pub fn door(folder: &Path, meeting: Meeting, mode: Mode) -> Door {
    let path = folder.join(mode.name());
    let at = match meeting {
        Meeting::Sockets => At::Socket(path),
        Meeting::Memory => At::Memory(MemoryPlace::File(path)),
    };
    Door { at, mode }
}

/// Those who make links; dropping it ends that.
pub type Listeners = (Vec<LinkListener>, Vec<MemoryListener>);

/// Listens for links to `shared`, for each way to wait. Dropping what it gives ends that.
pub fn listen(shared: &Path, folder: &Path, meeting: Meeting) -> Result<Listeners> {
    let links = links(shared)?;
    let mut listeners = Listeners::default();
    match meeting {
        Meeting::Sockets => {
            for mode in MODES {
                let limits = Limits { protocols: links.protocols(), ..Limits::default() };
                let options = ListenOptions { limits, mode, ..ListenOptions::default() };
                let listener = LinkListener::start(&folder.join(mode.name()), Arc::clone(&links), options);
                listeners.0.push(listener.map_err(|error| wrong("listen for links", &error))?);
            }
        }
        Meeting::Memory => {
            for mode in SLEEPERS {
                let place = MemoryPlace::File(folder.join(mode.name()));
                listeners.1.push(sit(&place, MEMORY_BYTES, &links, mode)?);
            }
        }
    }
    Ok(listeners)
}

/// Local-dir, or what another server offers at its socket, to be had over links.
pub fn links(shared: &Path) -> Result<Arc<Links>> {
    let export: Arc<dyn Export> = match chain::is_socket(shared) {
        true => Arc::new(VrpcExport::new(Door { at: At::Socket(shared.to_owned()), mode: Mode::Event })),
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
pub fn sit(place: &MemoryPlace, bytes: u64, links: &Arc<Links>, mode: Mode) -> Result<MemoryListener> {
    let memory = CommonMemory::to_serve(place, Some(bytes)).map_err(|error| wrong("memory", &error))?;
    let listener = MemoryListener::start(memory, Arc::clone(links), Limits::default(), mode, "bench");
    listener.map_err(|error| wrong("links over memory", &error))
}

/// As [`listen`], until a signal ends the process.
pub fn serve(shared: &Path, folder: &Path, meeting: Meeting) -> Result<()> {
    let _listeners = listen(shared, folder, meeting)?;
    let ready = folder.join(READY);
    std::fs::write(&ready, "").doing_to("write", &ready)?;
    loop {
        std::thread::park();
    }
}
