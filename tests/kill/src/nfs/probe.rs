//! The write verifier (RFC 1813 §3.3.7): unique to each server process, so that clients notice the loss of
//! uncommitted data.

use std::net::SocketAddr;

use tombolo_nfs_tests::client::{Expect, Nfs, Transport};
use tombolo_wire_nfs3::args::{CreateHow, StableHow};
use tombolo_wire_nfs3::{FileHandleBuf, Sattr3, WriteVerifier};

use crate::failure::{Result, wrong};

/// A record of the verifiers of all processes.
#[derive(Debug)]
pub struct Probe {
    server: SocketAddr,
    file: FileHandleBuf,
    seen: Vec<WriteVerifier>,
}

impl Probe {
    /// Creates a file to write to.
    pub fn new(server: SocketAddr, export: &str) -> Result<Self> {
        let nfs = Nfs::connect(Transport::Tcp, server)?;
        let made = nfs.create(&nfs.root(export), b"probe", CreateHow::Unchecked(Sattr3::default()));
        Ok(Self { server, file: made.done().handle(), seen: Vec::new() })
    }

    /// Checks that the verifier is new. Called once in the life of each server.
    pub fn is_another(&mut self) -> Result<()> {
        let nfs = Nfs::connect(Transport::Tcp, self.server)?;
        let write = || nfs.write(&self.file, 0, &[0; 8], StableHow::Unstable).done().verifier;
        let verifier = write();
        if self.seen.contains(&verifier) {
            return wrong(format!("a new server has an old write verifier, {verifier:?}"));
        }
        if write() != verifier {
            return wrong("the write verifier changed while nothing was lost");
        }
        self.seen.push(verifier);
        Ok(())
    }
}
