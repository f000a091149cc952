//! The server process, started and killed by the test. Its tree, state and port are permanent.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use crate::failure::Result;
use crate::process::{Home, Process};

/// A server's home, and its process while it runs.
#[derive(Debug)]
pub struct Server {
    /// Directory of tree, state and log.
    pub home: Home,
    address: SocketAddr,
    process: Option<Process>,
}

impl Server {
    /// Creates a home in `place`, without a server.
    pub fn new(program: &Path, place: &Path) -> Result<Self> {
        // The port is chosen once and reused through all restarts.
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        Ok(Self { home: Home::new(program, place)?, address, process: None })
    }

    /// Returns its address.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the exported tree on the host.
    pub fn tree(&self) -> PathBuf {
        self.home.tree()
    }

    /// The name of its export.
    pub const EXPORT: &'static str = "/tree";

    /// Starts it under the command `wrapper`, if any.
    pub fn start(&mut self, wrapper: &[&str]) -> Result<()> {
        let options = ["--nfs", &self.address.to_string(), "--squash", "none"];
        self.process = Some(self.home.serve(wrapper, &options)?);
        Ok(())
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        self.process.take().map_or(Ok(()), |mut process| process.kill())
    }

    /// Stops it with SIGTERM, as an operator does.
    pub fn stop(&mut self) -> Result<()> {
        self.process.take().map_or(Ok(()), Process::stop)
    }
}
