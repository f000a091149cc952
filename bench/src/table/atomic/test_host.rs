//! Test environment: networks, files and servers.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::Plan;
use crate::drive::{Direction, Job, Kind, read_name};
use crate::error::{Doing, Error, Result};
use crate::measure::{Contest, Entrant, Placement};
use crate::nfs::work::{Driver, moves};
use crate::nfs::{Limit, Link, Network};
use crate::peer::Nfs;
use crate::report::Report;

/// File that all clients write in turn.
pub(super) const WRITTEN: &str = "written";

/// Treatment of the data by a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Serves {
    /// Tombolo's server, on a file system in memory.
    Memory,
    /// Tombolo's server, on a disk.
    Disk,
    /// Null server, which drops the data.
    Nothing,
    Bare,
}

/// Test environment.
pub(super) struct TestHost<'a> {
    pub plan: &'a Plan,
    network: Network,
    memory: Folder,
    disk: Folder,
}

/// A served folder, and one next to it for the server's files.
struct Folder {
    root: TempDir,
}

impl Folder {
    fn within(folder: &Path) -> Result<Self> {
        let root = super::super::folder(folder)?;
        for name in ["shared", "beside"] {
            let folder = root.path().join(name);
            fs::create_dir(&folder).doing_to("make", &folder)?;
        }
        Ok(Self { root })
    }

    fn shared(&self) -> PathBuf {
        self.root.path().join("shared")
    }

    fn beside(&self) -> PathBuf {
        self.root.path().join("beside")
    }
}

impl<'a> TestHost<'a> {
    /// Creates the environment inside the run's network namespaces.
    pub fn make(plan: &'a Plan, disk: &Path) -> Result<Self> {
        let (memory, disk) = (Folder::within(&plan.within)?, Folder::within(disk)?);
        Ok(Self { plan, network: Network::make(), memory, disk })
    }

    /// Creates a report with the conditions that apply to all.
    pub fn report(&self, name: &str, title: &str) -> Report {
        let mut report = self.plan.report(name, title);
        report.condition(Network::condition());
        report.condition(
            "`two cores`, as two machines with a processor each: all threads of the client have one core, the server's the other. \
             Each client is a process of its own; context switches (voluntary and not) and processor time are those of its threads, from /proc",
        );
        report
    }

    pub fn say(&self, out: &mut dyn Write, error: &Error) -> Result<()> {
        writeln!(out, "left out: {error}").doing(|| "print".to_owned())
    }

    /// Starts a server at the other end of a link.
    pub fn server(&self, link: Link, serves: Serves) -> Result<Nfs> {
        self.network.check(link)?;
        match serves {
            Serves::Memory => Nfs::tombolo_at(link, &self.memory.shared(), &self.memory.beside()),
            Serves::Disk => Nfs::tombolo_at(link, &self.disk.shared(), &self.disk.beside()),
            Serves::Bare => Nfs::limit_at(link, Limit::Bulk, &self.memory.shared()),
            Serves::Nothing => Nfs::limit_at(link, Limit::Null, &self.memory.shared()),
        }
    }

    pub fn folder(&self, serves: Serves) -> PathBuf {
        if serves == Serves::Disk { self.disk.shared() } else { self.memory.shared() }
    }

    /// Returns a folder in memory that is not served.
    pub fn own(&self, name: &str) -> Result<PathBuf> {
        let folder = self.memory.beside().join(name);
        fs::create_dir_all(&folder).doing_to("make", &folder)?;
        Ok(folder)
    }

    /// Ensures that the file of a job exists, if the server has files.
    pub fn lay_out(&self, serves: Serves, job: &Job) -> Result<()> {
        if matches!(serves, Serves::Nothing | Serves::Bare) {
            return Ok(());
        }
        let folder = self.folder(serves);
        let name =
            if job.direction == Direction::Read { read_name(job.file_bytes) } else { WRITTEN.to_owned() };
        let path = folder.join(name);
        if fs::metadata(&path)
            .is_ok_and(|there| job.direction != Direction::Read || there.len() == job.file_bytes as u64)
        {
            return Ok(());
        }
        fs::write(&path, vec![b'b'; job.file_bytes]).doing_to("write", &path)
    }

    /// Adds a contestant that transfers files with one of our clients.
    pub fn enter<'e>(
        &self,
        entrants: &mut Vec<Entrant<'e>>,
        report: &mut Report,
        row: &str,
        Mover { name, kind, server, serves, job, count_max }: Mover<'_>,
    ) {
        let driver = self.lay_out(serves, &job).and_then(|()| Driver::of_kind(kind, server, WRITTEN));
        let work = driver.map(|driver| moves(driver, job, count_max));
        report.enter(entrants, row, name, work, &[server.server()], Placement::TwoCores);
    }

    /// Returns the usual contest with this number of rounds.
    pub fn contest(&self, rounds: usize) -> Contest {
        Contest { rounds: self.plan.rounds_of(rounds), count_syscalls: false, ..self.plan.contest() }
    }
}

/// A file transfer by one of our clients: column and variant, kind, server and job.
pub(super) struct Mover<'a> {
    pub name: (&'a str, &'a str),
    pub kind: Kind,
    pub server: &'a Nfs,
    pub serves: Serves,
    pub job: Job,
    /// Maximum number of files per turn.
    pub count_max: u64,
}
