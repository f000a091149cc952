//! Where an NFS server is.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

pub use tombolo_host_rpc::client::Transport;
use tombolo_host_rpc::client::Tunnel;
use tombolo_host_rpc::link::Route;
use tombolo_host_tls::ClientTls;

/// The ports of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ports {
    /// NFS and MOUNT at one port, as `tombolo serve` has them.
    One(u16),
    /// Each at its own.
    Two {
        /// NFS.
        nfs: u16,
        /// MOUNT.
        mount: u16,
    },
    /// NFS at this port, or where the portmapper says, and MOUNT where the portmapper says.
    Portmapper {
        /// NFS, if that is known.
        nfs: Option<u16>,
    },
}

/// A server.
#[derive(Clone, Debug)]
pub struct Server {
    /// What people call it; errors and logs do.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
    /// Its ports.
    pub ports: Ports,
    /// How it is called.
    pub transport: Transport,
    /// With this no program of it is called but over TLS: MOUNT neither, and no portmapper at all.
    pub tls: Option<Arc<ClientTls>>,
}

/// How the programs of a server are called.
#[derive(Clone, Debug)]
pub(crate) enum Endpoint {
    /// Over a network.
    Network(Server),
    /// Over links in shared memory.
    Links(Arc<Route>),
    /// Over the standard streams of a program.
    Tunnel(Arc<Tunnel>),
}

impl Endpoint {
    /// What an export is called there.
    pub fn label(&self, path: &str) -> String {
        match self {
            // It leads to one export.
            Self::Tunnel(tunnel) => tunnel.label().to_owned(),
            Self::Network(_) | Self::Links(_) => format!("{self}:{path}"),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(server) => server.fmt(f),
            Self::Links(route) => f.write_str(route.label()),
            Self::Tunnel(tunnel) => f.write_str(tunnel.label()),
        }
    }
}

impl Server {
    pub(crate) fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.address, port)
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ports {
            Ports::One(port) | Ports::Two { nfs: port, .. } => write!(f, "{}:{port}", self.name),
            Ports::Portmapper { .. } => f.write_str(&self.name),
        }
    }
}
