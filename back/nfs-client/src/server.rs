//! Address of an NFS server: its ports and transport.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

pub use tombolo_host_rpc::client::Transport;
use tombolo_host_rpc::client::Tunnel;
use tombolo_host_rpc::link::Route;
use tombolo_host_tls::ClientTls;

/// Ports of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ports {
    /// NFS and MOUNT at one port, as `tombolo serve` has them.
    One(u16),
    /// NFS and MOUNT at a port each.
    Two {
        /// Port of NFS.
        nfs: u16,
        /// Port of MOUNT.
        mount: u16,
    },
    /// NFS at this port or, if it is unknown, at the one that the portmapper returns; MOUNT at the one that
    /// the portmapper returns.
    Portmapper {
        /// Port of NFS, if it is known.
        nfs: Option<u16>,
    },
}

/// An NFS server.
#[derive(Clone, Debug)]
pub struct Server {
    /// Name of the server in errors and logs.
    pub name: String,
    /// Address of the server.
    pub address: IpAddr,
    /// Ports of the server.
    pub ports: Ports,
    /// Transport of its calls.
    pub transport: Transport,
    /// TLS configuration, if any: all programs are then called over TLS only, MOUNT included. Must not be
    /// combined with [`Ports::Portmapper`], as portmappers have no TLS.
    pub tls: Option<Arc<ClientTls>>,
}

/// Transport of a server's programs.
#[derive(Clone, Debug)]
pub(crate) enum Endpoint {
    /// Sockets over a network.
    Network(Server),
    /// Links in shared memory.
    Links(Arc<Route>),
    /// The standard streams of a program.
    Tunnel(Arc<Tunnel>),
}

impl Endpoint {
    /// Returns the name of an export of the server.
    pub fn label(&self, path: &str) -> String {
        match self {
            // A tunnel leads to one export.
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
