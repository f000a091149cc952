//! Connections to the correct server behind a scripted one.

use std::io;
use std::net::SocketAddr;

use tombolo_nfs_tests::client::Stream;
use tombolo_wire_rpc::SUCCESS_BYTES;

/// A connection to the correct server, established on demand.
pub(super) struct Upstream {
    address: SocketAddr,
    stream: Option<Stream>,
}

impl Upstream {
    pub(super) fn new(address: SocketAddr) -> Self {
        Self { address, stream: None }
    }

    /// Relays a call and waits for the reply. Fails if the server is down; the client's connection is
    /// closed then.
    pub(super) fn ask(&mut self, message: &[u8]) -> io::Result<Vec<u8>> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            none => none.insert(Stream::connect(self.address)?),
        };
        stream.send(message)?;
        stream.receive()?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Relays a call and edits the results.
    pub(super) fn ask_and_edit(
        &mut self,
        message: &[u8],
        edit: impl FnOnce(&mut Vec<u8>),
    ) -> io::Result<Vec<u8>> {
        let mut reply = self.ask(message)?;
        let mut results = reply.split_off(SUCCESS_BYTES.min(reply.len()));
        edit(&mut results);
        reply.append(&mut results);
        Ok(reply)
    }
}
