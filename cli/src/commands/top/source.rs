//! Where counters come from: the control sockets of servers.

use std::path::{Path, PathBuf};

use tombolo_host_service::control::{self, Client};

use crate::failure::Failure;
use crate::service::counters::Counters;
use crate::service::status::{self, Status};

pub struct Source {
    socket: PathBuf,
    client: Client,
    status: Status,
    before: Counters,
}

/// What one look at a server found.
pub struct Look {
    pub socket: PathBuf,
    pub status: Status,
    /// Since it started.
    pub total: Counters,
    /// Since the last look; at the first one since it started.
    pub recent: Counters,
}

pub fn connect(sockets: &[PathBuf]) -> Result<Vec<Source>, Failure> {
    if !sockets.is_empty() {
        return sockets.iter().map(|socket| Source::connect(socket)).collect();
    }
    let directory = control::default_directory();
    let found = control::sockets(&directory).map_err(|error| {
        Failure::cannot(format_args!("look for servers in {}", directory.display()), &error)
    })?;
    if found.is_empty() {
        let looked = format!("find a server in {}", directory.display());
        return Err(
            Failure::cannot(looked, "none runs").remedy("name its control socket: tombolo top SOCKET")
        );
    }
    found.iter().map(|socket| Source::connect(socket)).collect()
}

impl Source {
    fn connect(socket: &Path) -> Result<Self, Failure> {
        let mut client = Client::connect(socket).map_err(|error| {
            Failure::cannot(format_args!("reach a server at {}", socket.display()), &error)
        })?;
        let status = status::ask(&mut client, socket, "status")?;
        Ok(Self { socket: socket.to_owned(), client, status, before: Counters::default() })
    }

    /// Asks for the counters and compares them with those of the last look.
    pub fn look(&mut self) -> Result<Look, Failure> {
        let total: Counters = status::ask(&mut self.client, &self.socket, "stats")?;
        let recent = total.since(&self.before);
        self.before = total.clone();
        Ok(Look { socket: self.socket.clone(), status: self.status.clone(), total, recent })
    }
}
