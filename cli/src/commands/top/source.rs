//! Counters of servers, read from their control sockets.

use std::path::{Path, PathBuf};

use tombolo_host_service::control::{self, Client};

use crate::failure::{Failure, OrCannot};
use crate::service::counters::Counters;
use crate::service::status::{self, Status};

pub struct Source {
    socket: PathBuf,
    client: Client,
    status: Status,
    before: Counters,
}

pub struct Sample {
    pub socket: PathBuf,
    pub status: Status,
    /// Totals since the server's start.
    pub total: Counters,
    /// Increase since the last sample; at the first one since the server's start.
    pub recent: Counters,
}

pub fn connect(sockets: &[PathBuf]) -> Result<Vec<Source>, Failure> {
    if !sockets.is_empty() {
        return sockets.iter().map(|socket| Source::connect(socket)).collect();
    }
    let directory = control::default_directory();
    let found = control::sockets(&directory)
        .or_cannot(format_args!("look for servers in {}", directory.display()))?;
    if found.is_empty() {
        let looked = format!("find a server in {}", directory.display());
        return Err(
            Failure::cannot(looked, "none is running").remedy("name a control socket: tombolo top SOCKET")
        );
    }
    found.iter().map(|socket| Source::connect(socket)).collect()
}

impl Source {
    fn connect(socket: &Path) -> Result<Self, Failure> {
        let mut client = Client::connect(socket)
            .or_cannot(format_args!("connect to the server at {}", socket.display()))?;
        let status = status::ask(&mut client, socket, "status")?;
        Ok(Self { socket: socket.to_owned(), client, status, before: Counters::default() })
    }

    /// Samples the counters, and computes the increase since the last sample.
    pub fn sample(&mut self) -> Result<Sample, Failure> {
        let total: Counters = status::ask(&mut self.client, &self.socket, "stats")?;
        let recent = total.since(&self.before);
        self.before = total.clone();
        Ok(Sample { socket: self.socket.clone(), status: self.status.clone(), total, recent })
    }
}
