//! A caller in a process of its own: it asks when it is told to, and can be looked at from outside.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use clap::ValueEnum;
use tombolo_host_links::memory::MemoryPlace;
use tombolo_shm::doorbell::Mode;

use super::door::{At, Door};
use super::server::Meeting;
use super::session::{Deed, Session};
use super::wrong;
use crate::error::{Doing, Error, Result};

/// The caller's process, which has one link from its first order on.
pub struct Asker {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Asker {
    /// This program once more, with a link through that door. It has asked for nothing yet but to open the file.
    pub fn start(door: &Door) -> Result<Self> {
        let program = std::env::current_exe().doing(|| "find this program".to_owned())?;
        let (meeting, path) = match &door.at {
            At::Socket(path) => (Meeting::Sockets, path),
            At::Memory(MemoryPlace::File(path) | MemoryPlace::Mmapper(path)) => (Meeting::Memory, path),
            At::Memory(MemoryPlace::Pci(_)) => return Err(Error::Absent("no caller over PCI".to_owned())),
        };
        let mut command = Command::new(program);
        command.arg("ring-asker");
        if let Some(meeting) = meeting.to_possible_value() {
            command.arg(meeting.get_name());
        }
        command.arg(path).arg(door.mode.name()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().doing(|| "start a caller".to_owned())?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (orders, answers) = pipes.ok_or_else(|| wrong("a caller", &std::fmt::Error))?;
        let mut asker = Self { child, orders, answers: BufReader::new(answers) };
        asker.heard()?;
        Ok(asker)
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Does it so many times.
    pub fn ask(&mut self, deed: Deed, count: u64) -> Result<()> {
        writeln!(self.orders, "{} {} {count}", word(deed), deed.bytes())
            .doing(|| "tell a caller".to_owned())?;
        self.heard()
    }

    fn heard(&mut self) -> Result<()> {
        let mut line = String::new();
        self.answers.read_line(&mut line).doing(|| "hear a caller".to_owned())?;
        match line.trim() {
            DONE => Ok(()),
            other => Err(Error::Wrong { what: "a caller".to_owned(), answer: other.to_owned() }),
        }
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        let _gone = tombolo_sys::process::terminate(self.child.id());
        let _ended = self.child.wait();
    }
}

const DONE: &str = "done";

fn word(deed: Deed) -> &'static str {
    match deed {
        Deed::Null => "null",
        Deed::Getattr => "getattr",
        Deed::Read(_) => "read",
        Deed::ReadInPlace(_) => "read-in-place",
        Deed::Write(_) => "write",
        Deed::WriteInPlace(_) => "write-in-place",
    }
}

fn deed(order: &str) -> Option<(Deed, u64)> {
    let mut words = order.split_whitespace();
    let (word, bytes, count) = (words.next()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let deed = match word {
        "null" => Deed::Null,
        "getattr" => Deed::Getattr,
        "read" => Deed::Read(bytes),
        "read-in-place" => Deed::ReadInPlace(bytes),
        "write" => Deed::Write(bytes),
        "write-in-place" => Deed::WriteInPlace(bytes),
        _ => return None,
    };
    Some((deed, count))
}

/// The largest read or write that it is asked for.
const BYTES_MAX: usize = 1 << 20;

/// What the caller's process does: takes orders on `orders`, until they end.
pub fn obey(
    meeting: Meeting,
    path: std::path::PathBuf,
    mode: Mode,
    orders: impl BufRead,
    out: &mut dyn Write,
) -> Result<()> {
    let at = match meeting {
        Meeting::Sockets => At::Socket(path),
        Meeting::Memory => At::Memory(MemoryPlace::File(path)),
    };
    let session = Session::begin(&Door { at, mode }, BYTES_MAX)?;
    let mut say = |word: &str| {
        writeln!(out, "{word}").and_then(|()| out.flush()).doing(|| "answer an order".to_owned())
    };
    say(DONE)?;
    for order in orders.lines() {
        let order = order.doing(|| "read an order".to_owned())?;
        let Some((deed, count)) = deed(&order) else {
            say("what?")?;
            continue;
        };
        match (0..count).try_for_each(|_| session.ask(deed)) {
            Ok(()) => say(DONE)?,
            Err(error) => say(&error.to_string())?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::ring::{server, speed};

    #[test]
    fn orders_are_obeyed_over_sockets_and_over_memory() {
        for meeting in [Meeting::Sockets, Meeting::Memory] {
            let folder = tempfile::tempdir().unwrap();
            let (shared, _) = speed::lay_out(folder.path()).unwrap();
            let _listeners = server::listen(&shared, folder.path(), meeting).unwrap();
            let orders = "null 0 3\nread 1048576 1\nwrite-in-place 4096 2\nsing 0 1\nread 2097152 1\n";
            let (path, mut said) = (folder.path().join("adaptive"), Vec::new());
            obey(meeting, path, Mode::Adaptive, orders.as_bytes(), &mut said).unwrap();
            let said = String::from_utf8(said).unwrap();
            let said: Vec<_> = said.lines().collect();
            assert_eq!(said[..5], ["done", "done", "done", "done", "what?"], "{meeting:?}");
            assert!(said[5].contains("wrong answer"), "{meeting:?}: more than the file has: {}", said[5]);
        }
    }
}
