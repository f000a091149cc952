//! A client in a process of its own that asks for nothing once and then keeps its link, to be looked at from outside.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use clap::ValueEnum;
use tombolo_host_links::shared_memory::MemoryLocation;
use tombolo_shm::doorbell::Mode;

use super::endpoint::{At, Endpoint};
use super::server::EndpointKind;
use super::session::{Operation, Session};
use super::wrong;
use crate::error::{Doing, Error, Result};

/// The process. It ends with its standard input.
pub struct IdleClient(Child);

impl IdleClient {
    /// This program once more, with a link through that endpoint.
    pub fn start(endpoint: &Endpoint) -> Result<Self> {
        let program = std::env::current_exe().doing(|| "find this program".to_owned())?;
        let (kind, path) = match &endpoint.at {
            At::Socket(path) => (EndpointKind::Sockets, path),
            At::Memory(MemoryLocation::File(path) | MemoryLocation::Mmapper(path)) => {
                (EndpointKind::Memory, path)
            }
            At::Memory(MemoryLocation::Pci(_)) => return Err(Error::Absent("no client over PCI".to_owned())),
        };
        let mut command = Command::new(program);
        command.arg("ring-idle").args(kind.to_possible_value().map(|value| value.get_name().to_owned()));
        command.arg(path).arg(endpoint.mode.name()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut client = Self(command.spawn().doing(|| "start a client".to_owned())?);
        let mut line = String::new();
        if let Some(out) = client.0.stdout.take() {
            BufReader::new(out).read_line(&mut line).doing(|| "hear a client".to_owned())?;
        }
        match line.trim() {
            DONE => Ok(client),
            other => Err(Error::Wrong { what: "a client".to_owned(), answer: other.to_owned() }),
        }
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for IdleClient {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ended = self.0.wait();
    }
}

const DONE: &str = "done";

pub fn idle(
    kind: EndpointKind,
    path: PathBuf,
    mode: Mode,
    mut input: impl Read,
    out: &mut dyn Write,
) -> Result<()> {
    let at = match kind {
        EndpointKind::Sockets => At::Socket(path),
        EndpointKind::Memory => At::Memory(MemoryLocation::File(path)),
    };
    let session = Session::begin(&Endpoint { at, mode }, 0)?;
    session.ask(Operation::Null)?;
    writeln!(out, "{DONE}").and_then(|()| out.flush()).doing(|| "say that it is done".to_owned())?;
    input.read_to_end(&mut Vec::new()).map_err(|error| wrong("standard input", &error)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::ring::{server, speed};

    #[test]
    fn a_client_asks_once_over_sockets_and_over_memory() {
        for kind in [EndpointKind::Sockets, EndpointKind::Memory] {
            let folder = tempfile::tempdir().unwrap();
            let (shared, _) = speed::lay_out(folder.path()).unwrap();
            let _listeners = server::listen(&shared, folder.path(), kind).unwrap();
            let mut said = Vec::new();
            idle(kind, folder.path().join("adaptive"), Mode::Adaptive, &b""[..], &mut said).unwrap();
            assert_eq!(said, b"done\n", "{kind:?}");
        }
    }
}
