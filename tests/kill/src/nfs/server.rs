//! The server, in a process of its own, started and killed as the test likes. Its tree, its state and its
//! port stay.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use crate::failure::Result;
use crate::process::{Home, Process};

/// Where a server lives, and the server, when it runs.
#[derive(Debug)]
pub struct Server {
    /// Tree, state and log.
    pub home: Home,
    address: SocketAddr,
    process: Option<Process>,
}

impl Server {
    /// A new home in `place`, without a server.
    pub fn new(program: &Path, place: &Path) -> Result<Self> {
        // Whatever port is free stays ours through all restarts.
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        Ok(Self { home: Home::new(program, place)?, address, process: None })
    }

    /// Where it answers.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it exports, as the host sees it.
    pub fn tree(&self) -> PathBuf {
        self.home.tree()
    }

    /// The name of its export.
    pub const EXPORT: &'static str = "/tree";

    /// Starts it, below the words of `wrapper` if there are any.
    pub fn start(&mut self, wrapper: &[&str]) -> Result<()> {
        let options = ["--nfs", &self.address.to_string(), "--squash", "none"];
        self.process = Some(self.home.serve(wrapper, &options)?);
        Ok(())
    }

    /// Kills it on the spot.
    pub fn kill(&mut self) -> Result<()> {
        self.process.take().map_or(Ok(()), Process::kill)
    }

    /// Asks it to end, as an operator does.
    pub fn stop(&mut self) -> Result<()> {
        self.process.take().map_or(Ok(()), Process::stop)
    }
}
