//! The same asked by libnfs: a program of its own drives it (`bench/peers/libnfs-driver.c`), as told in each turn.

use std::cell::RefCell;
use std::io::{BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use crate::error::{Doing, Result};
use crate::files::Tree;
use crate::measure::{Clock, Work, spare_cores};
use crate::peer::{Nfs, Program, find};

/// A running driver, connected to one server. It runs on the caller's core.
pub struct Driver {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Driver {
    /// Starts it; its file is `name` in the export's root.
    pub fn start(server: &Nfs, name: &str) -> Result<Rc<RefCell<Self>>> {
        let mut command = Command::new(find(Program::LibnfsDriver)?);
        let (nfs, mount) = (server.nfs(), server.mount());
        command.args([nfs.ip().to_string(), nfs.port().to_string(), mount.port().to_string()]);
        command.args([server.export(), name]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().doing(|| "start libnfs-driver".to_owned())?;
        let core = spare_cores().first().copied().unwrap_or_default();
        tombolo_sys::affinity::pin(Some(child.id()), &[core]).doing(|| "pin libnfs-driver".to_owned())?;
        let (to, from) = (child.stdin.take(), child.stdout.take());
        let closed = || std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        let from = from.ok_or_else(closed).doing(|| "talk to libnfs-driver".to_owned())?;
        Ok(Rc::new(RefCell::new(Self { child, to, from: BufReader::new(from) })))
    }

    fn run(&mut self, command: &str) -> std::io::Result<(Duration, Vec<Duration>)> {
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

/// What a driver does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drives {
    /// GETATTR.
    Getattr,
    /// READ of pieces of so many bytes.
    Read(u32),
    /// WRITE, UNSTABLE, and one COMMIT.
    Write(u32),
}

/// A driver's doing.
pub struct Driven {
    driver: Rc<RefCell<Driver>>,
    drives: Drives,
    outstanding: u32,
}

impl Driven {
    /// With so many calls outstanding.
    pub fn new(driver: &Rc<RefCell<Driver>>, drives: Drives, outstanding: u32) -> Self {
        Self { driver: Rc::clone(driver), drives, outstanding }
    }
}

impl Work for Driven {
    fn run(&mut self, count: u64, clock: &mut Clock) -> Result<()> {
        let (outstanding, file) = (self.outstanding, Tree::LARGE_BYTES);
        let command = match self.drives {
            Drives::Getattr => format!("getattr {outstanding} {count}"),
            Drives::Read(bytes) => format!("read {outstanding} {count} {bytes} {file}"),
            Drives::Write(bytes) => format!("write {outstanding} {count} {bytes} {file}"),
        };
        let done = self.driver.borrow_mut().run(&command);
        let (took, laps) = done.doing(|| format!("libnfs-driver: {command}"))?;
        if laps.is_empty() {
            clock.record(took, count);
        }
        for lap in laps {
            clock.record(lap, 1);
        }
        Ok(())
    }

    fn bytes(&self) -> Option<u64> {
        match self.drives {
            Drives::Getattr => None,
            Drives::Read(bytes) | Drives::Write(bytes) => Some(u64::from(bytes)),
        }
    }

    fn caller(&self) -> Option<u32> {
        Some(self.driver.borrow().child.id())
    }

    fn per_second(&self) -> bool {
        self.outstanding > 1
    }
}
