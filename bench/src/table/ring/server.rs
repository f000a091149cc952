//! The other side: local-dir over links, in a process of its own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use tombolo_back_local_dir::{LocalDir, Options as DirOptions};
use tombolo_front_vrpc_server::{Options, VrpcServer};
use tombolo_host::links::listen::{LinkListener, ListenOptions};
use tombolo_host::links::server::Server as Links;
use tombolo_shm::bell::Mode;

use super::wrong;
use crate::error::{Doing, Result};
use crate::peer::Server;

/// The ways to wait that are measured; the server waits as its client does, so each has a socket.
pub const MODES: [Mode; 3] = [Mode::Poll, Mode::Event, Mode::Adaptive];

/// The server's process.
pub struct Serving {
    server: Server,
    sockets: PathBuf,
}

impl Serving {
    /// This program once more, which serves `folder` at sockets in `sockets`.
    pub fn start(folder: &Path, sockets: &Path) -> Result<Self> {
        let program = std::env::current_exe().doing(|| "find this program".to_owned())?;
        let mut command = Command::new(program);
        command.args(["bench", "ring-server"]).arg(folder).arg(sockets);
        let server = Server::start("tombolo bench ring-server", &mut command)?;
        let mut serving = Self { server, sockets: sockets.to_owned() };
        let all = MODES.map(|mode| socket(&serving.sockets, mode));
        serving.server.wait_until("sockets", || all.iter().all(|socket| socket.exists()))?;
        Ok(serving)
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.server.id()
    }

    /// Where it waits in that way.
    pub fn socket(&self, mode: Mode) -> PathBuf {
        socket(&self.sockets, mode)
    }
}

/// In the folder of sockets, that of one way to wait.
pub fn socket(sockets: &Path, mode: Mode) -> PathBuf {
    sockets.join(mode.name())
}

/// Listens for links to `folder`, one socket for each way to wait. Dropping what it gives ends that.
pub fn listen(folder: &Path, sockets: &Path) -> Result<Vec<LinkListener>> {
    let export = LocalDir::open(folder, DirOptions::default()).map_err(|error| wrong("local-dir", &error))?;
    let service = VrpcServer::new().with_export(super::EXPORT, Arc::new(export), Options::default());
    let links = Arc::new(Links::new(Arc::new(service)));
    let one = |mode| {
        let options = ListenOptions { mode, ..ListenOptions::default() };
        LinkListener::start(&socket(sockets, mode), Arc::clone(&links), options)
            .map_err(|error| wrong("listen for links", &error))
    };
    MODES.into_iter().map(one).collect()
}

/// As [`listen`], until a signal ends the process.
pub fn serve(folder: &Path, sockets: &Path) -> Result<()> {
    let _listeners = listen(folder, sockets)?;
    loop {
        std::thread::park();
    }
}
