//! Clients in their own processes, controlled turn by turn: libnfs (`bench/peers/libnfs-driver.c`), and those
//! of [`drive`](crate::drive).

use std::cell::RefCell;
use std::io::{BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use clap::ValueEnum;

use crate::drive::Kind;
use crate::error::{Doing, Result};
use crate::measure::spare_cores;
use crate::peer::{Nfs, Program, find, this_program};

/// A running client, connected to one server, on the caller's core.
pub struct Driver {
    name: String,
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Driver {
    /// Starts libnfs for shared use; its file is `name` in the export's root.
    pub fn start(server: &Nfs, name: &str) -> Result<Rc<RefCell<Self>>> {
        Ok(Rc::new(RefCell::new(Self::libnfs(server, name)?)))
    }

    /// Starts libnfs; its file is `name` in the export's root.
    pub fn libnfs(server: &Nfs, name: &str) -> Result<Self> {
        let mut command = Command::new(find(Program::LibnfsDriver)?);
        let (nfs, mount) = (server.nfs(), server.mount());
        command.args([nfs.ip().to_string(), nfs.port().to_string(), mount.port().to_string()]);
        command.args([server.export(), name]);
        Self::run_as("libnfs-driver", command)
    }

    /// Starts one of our clients, as [`drive`](crate::drive::drive); the file that it writes is `name` in the
    /// export's root.
    pub fn of_kind(kind: Kind, server: &Nfs, name: &str) -> Result<Self> {
        let kind = kind.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        let mut command = Command::new(this_program()?);
        command.args(["drive", &kind, &server.nfs().to_string(), &server.mount().to_string()]);
        command.args([server.export(), name]);
        Self::run_as(&kind, command)
    }

    fn run_as(name: &str, mut command: Command) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().doing(|| format!("start {name}"))?;
        let core = spare_cores().first().copied().unwrap_or_default();
        tombolo_sys::affinity::pin(Some(child.id()), &[core]).doing(|| format!("pin {name}"))?;
        let (to, from) = (child.stdin.take(), child.stdout.take());
        let closed = || std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        let from = from.ok_or_else(closed).doing(|| format!("talk to {name}"))?;
        Ok(Self { name: name.to_owned(), child, to, from: BufReader::new(from) })
    }

    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Executes `command`; returns the total time and those of its parts, if measured.
    pub fn run(&mut self, command: &str) -> Result<(Duration, Vec<Duration>)> {
        self.exchange(command).doing(|| format!("{}: {command}", self.name))
    }

    fn exchange(&mut self, command: &str) -> std::io::Result<(Duration, Vec<Duration>)> {
        if let Some(to) = &mut self.to {
            writeln!(to, "{command}")?;
            to.flush()?;
        }
        let mut took = [0; 8];
        self.from.read_exact(&mut took)?;
        let mut count = [0; 4];
        self.from.read_exact(&mut count)?;
        let mut laps = vec![0; 4 * u32::from_ne_bytes(count) as usize];
        self.from.read_exact(&mut laps)?;
        let lap = |bytes: &[u8; 4]| Duration::from_nanos(u64::from(u32::from_ne_bytes(*bytes)));
        Ok((Duration::from_nanos(u64::from_ne_bytes(took)), laps.as_chunks().0.iter().map(lap).collect()))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // It ends with its input.
        drop(self.to.take());
        let _ended = self.child.wait();
    }
}
