//! Client in a separate process that keeps its link and uses it only on command, for observation from
//! outside.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use clap::ValueEnum;
use tombolo_host_links::shared_memory::MemoryLocation;
use tombolo_shm::doorbell::Mode;

use super::endpoint::{At, Endpoint};
use super::server::EndpointKind;
use super::session::{Operation, Session};
use super::{FILE_BYTES, wrong};
use crate::error::{Doing, Error, Result};
use crate::peer::this_program;

/// The client's process, which ends with its standard input.
pub struct IdleClient {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl IdleClient {
    /// Starts this program with a link through that endpoint.
    pub fn start(endpoint: &Endpoint) -> Result<Self> {
        let (kind, path) = match &endpoint.at {
            At::Socket(path) => (EndpointKind::Sockets, path),
            At::Memory(MemoryLocation::File(path)) => (EndpointKind::Memory, path),
            At::Memory(_) => return Err(Error::Absent("idle clients require a memory file".to_owned())),
        };
        let mut command = Command::new(this_program()?);
        command.arg("ring-idle").args(kind.to_possible_value().map(|value| value.get_name().to_owned()));
        command.arg(path).arg(endpoint.mode.name()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().doing(|| "start a client".to_owned())?;
        let answers = child.stdout.take().ok_or_else(|| wrong("a client", &std::fmt::Error))?;
        let mut client = Self { child, answers: BufReader::new(answers) };
        client.hear()?;
        Ok(client)
    }

    /// Requests one of [`OPERATIONS`].
    pub fn ask(&mut self, operation: Operation) -> Result<()> {
        let word = OPERATIONS.iter().find(|(_, known)| *known == operation).map(|(word, _)| word);
        if let (Some(word), Some(orders)) = (word, &mut self.child.stdin) {
            writeln!(orders, "{word}").doing(|| "send a command to a client".to_owned())?;
        }
        self.hear()
    }

    fn hear(&mut self) -> Result<()> {
        let mut line = String::new();
        self.answers.read_line(&mut line).doing(|| "receive a reply from a client".to_owned())?;
        match line.trim() {
            DONE => Ok(()),
            other => Err(Error::Wrong { what: "a client".to_owned(), answer: other.to_owned() }),
        }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for IdleClient {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ended = self.child.wait();
    }
}

const DONE: &str = "done";

/// Operations by command.
const OPERATIONS: [(&str, Operation); 5] = [
    ("null", Operation::Null),
    ("read", Operation::Read(FILE_BYTES)),
    ("read-in-place", Operation::ReadInPlace(FILE_BYTES)),
    ("write", Operation::Write(FILE_BYTES)),
    ("write-in-place", Operation::WriteInPlace(FILE_BYTES)),
];

pub fn idle(
    kind: EndpointKind,
    path: PathBuf,
    mode: Mode,
    input: impl BufRead,
    out: &mut dyn Write,
) -> Result<()> {
    let session = Session::begin(&Endpoint { at: kind.at(path), mode }, FILE_BYTES)?;
    session.ask(Operation::Null)?;
    let mut say = |answer: &str| {
        writeln!(out, "{answer}").and_then(|()| out.flush()).doing(|| "reply to a command".to_owned())
    };
    say(DONE)?;
    for order in input.lines() {
        let order = order.doing(|| "read a command".to_owned())?;
        match OPERATIONS.iter().find(|(word, _)| *word == order).map(|(_, operation)| session.ask(*operation))
        {
            Some(Ok(())) => say(DONE)?,
            Some(Err(error)) => say(&error.to_string())?,
            None => say("no such operation")?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::ring::{server, speed};

    #[test]
    fn client_follows_instructions_over_sockets_and_memory() {
        for kind in [EndpointKind::Sockets, EndpointKind::Memory] {
            let folder = tempfile::tempdir().unwrap();
            let (shared, _) = speed::lay_out(folder.path()).unwrap();
            let _listeners = server::listen(&shared, folder.path(), kind).unwrap();
            let mut said = Vec::new();
            idle(
                kind,
                folder.path().join("adaptive"),
                Mode::Adaptive,
                &b"read\nwrite-in-place\nsing\n"[..],
                &mut said,
            )
            .unwrap();
            assert_eq!(said, b"done\ndone\ndone\nno such operation\n", "{kind:?}");
        }
    }
}
