//! Mounted export.

use std::net::SocketAddr;

use super::super::Wait;
use super::call::Reply;
use super::connection::Connection;
use super::procedures::{Handle, found, lookup, mnt, mounted};
use crate::error::Result;
use crate::peer::Nfs;

/// A connection to a server, with the root of its export.
pub struct Mounted {
    connection: Connection,
    root: Handle,
    reply: Reply,
}

impl Mounted {
    /// Mounts the server's export.
    pub fn new(server: &Nfs, wait: Wait) -> Result<Self> {
        Self::at((server.nfs(), server.mount()), server.export(), wait)
    }

    /// Mounts an export of the server at these addresses of NFS and MOUNT.
    pub fn at((nfs, mount): (SocketAddr, SocketAddr), export: &str, wait: Wait) -> Result<Self> {
        let mut reply = Reply::default();
        Connection::connect(mount, Wait::Sleep)?.call(&mut mnt(export)?, &mut reply)?;
        let root = mounted(&reply)?;
        let connection = Connection::connect(nfs, wait)?;
        Ok(Self { connection, root, reply })
    }

    pub fn root(&self) -> &Handle {
        &self.root
    }

    pub fn lookup(&mut self, folder: &Handle, name: &str) -> Result<Handle> {
        self.connection.call(&mut lookup(folder, name.as_bytes()), &mut self.reply)?;
        found(&self.reply)
    }

    /// Looks up a path relative to the root.
    pub fn walk(&mut self, path: &str) -> Result<Handle> {
        let mut file = self.root;
        for name in path.split('/') {
            file = self.lookup(&file, name)?;
        }
        Ok(file)
    }

    pub fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    pub fn into_connection(self) -> Connection {
        self.connection
    }
}
