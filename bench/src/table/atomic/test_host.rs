//! Test environment: networks, files and servers.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tempfile::TempDir;

use super::Plan;
use crate::drive::{Direction, Job, Kind, read_name};
use crate::error::{Doing, Result};
use crate::measure::{Contest, Placement, Series};
use crate::nfs::work::{Driver, moves};
use crate::nfs::{Limit, Link, Network};
use crate::peer::Nfs;
use crate::report::{Figure, Report, Unit};
use crate::sheet::{Named, Sheet};

/// File that all clients write in turn.
pub(super) const WRITTEN: &str = "written";

/// Treatment of the data by a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Serves {
    /// Tombolo's server, on a file system in memory.
    Memory,
    /// Tombolo's server, on a disk.
    Disk,
    /// Null server, which drops the data.
    Nothing,
    Bare,
}

/// Transfer of a file, again and again: row of a sheet.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Transfer {
    pub name: String,
    pub link: Link,
    pub serves: Serves,
    pub direction: Direction,
    /// Size of a request, at most the file's.
    pub piece_kib: usize,
    /// Size of the file in a full run and in a smoke test.
    pub file_kib: [usize; 2],
    /// Maximum number of files per turn.
    pub count_max: u64,
}

impl Named for Transfer {
    fn name(&self) -> &str {
        &self.name
    }
}

/// Client that transfers it: column of a sheet.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Mover {
    pub name: String,
    #[serde(default)]
    pub variant: String,
    pub kind: Kind,
    /// Requests in flight; 0 for the client's choice.
    #[serde(default)]
    pub limit: u32,
    /// Server and number of files, if not the row's.
    pub serves: Option<Serves>,
    pub count_max: Option<u64>,
}

/// Test environment.
pub(super) struct TestHost<'a> {
    pub plan: &'a Plan,
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
    pub fn make(plan: &'a Plan) -> Result<Self> {
        let (memory, disk) = (Folder::within(&plan.within)?, Folder::within(&plan.disk)?);
        Ok(Self { plan, memory, disk })
    }

    /// Sets the words of a sheet that describe the environment.
    pub fn described<'p, R: Named + DeserializeOwned, C: DeserializeOwned>(
        &self,
        mut sheet: Sheet<'p, R, C>,
    ) -> Sheet<'p, R, C> {
        sheet.set("network", &Network::condition());
        sheet.set(
            "two_cores",
            &"`two cores`, as two machines with a processor each: all threads of the client have one core, the server's the other. \
             Each client is a process of its own; context switches (voluntary and not) and processor time are those of its threads, from /proc",
        );
        sheet
    }

    /// Starts a server at the other end of a link.
    pub fn server(&self, link: Link, serves: Serves) -> Result<Nfs> {
        Network::check(link)?;
        match serves {
            Serves::Memory => Nfs::tombolo_at(link, &self.memory.shared(), &self.memory.beside()),
            Serves::Disk => Nfs::tombolo_at(link, &self.disk.shared(), &self.disk.beside()),
            Serves::Bare => Nfs::limit_at(link, Limit::Swap, &self.memory.shared()),
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

    /// Runs the contest of a row, with servers of its own.
    pub fn transfer(
        &self,
        report: &mut Report,
        contest: &Contest,
        transfer: &Transfer,
        movers: &[Mover],
    ) -> Result<Vec<Series>> {
        let mut servers: Vec<(Serves, Nfs)> = Vec::new();
        for serves in movers.iter().map(|mover| mover.serves.unwrap_or(transfer.serves)) {
            if servers.iter().all(|(known, _)| *known != serves) {
                servers.push((serves, self.server(transfer.link, serves)?));
            }
        }
        let mut entrants = Vec::new();
        for mover in movers {
            let serves = mover.serves.unwrap_or(transfer.serves);
            let Some((_, server)) = servers.iter().find(|(known, _)| *known == serves) else { continue };
            let job = self.job(transfer, mover.limit);
            let driver =
                self.lay_out(serves, &job).and_then(|()| Driver::of_kind(mover.kind, server, WRITTEN));
            let work = driver.map(|driver| moves(driver, job, mover.count_max.unwrap_or(transfer.count_max)));
            let (name, place) = ((&*mover.name, &*mover.variant), Placement::TwoCores);
            report.enter(&mut entrants, &transfer.name, name, work, &[server.server()], place);
        }
        Ok(report.contest(&transfer.name, contest, entrants))
    }

    pub fn job(&self, transfer: &Transfer, limit: u32) -> Job {
        let [full, quick] = transfer.file_kib;
        let file_bytes = self.plan.scaled(full, quick) << 10;
        let piece_bytes = (transfer.piece_kib << 10).min(file_bytes);
        Job { direction: transfer.direction, limit, piece_bytes, file_bytes }
    }

    /// Returns the usual contest, which counts no system calls.
    pub fn contest(&self) -> Contest {
        Contest { count_syscalls: false, ..self.plan.contest() }
    }
}

/// Adds context switches and processor time of the clients per megabyte as rows of their own.
pub(super) fn add_costs(report: &mut Report, series: &[Series], switches: &str, cpu: Option<&str>) {
    for series in series {
        let counted = Figure::per_megabyte(switches, series, Unit::PerMegabyte, |cost| cost.caller_switches);
        let timed = cpu.and_then(|cpu| {
            Figure::per_megabyte(cpu, series, Unit::NanosecondsPerMegabyte, |cost| cost.caller_cpu_ns)
        });
        report.figures.extend(counted.into_iter().chain(timed));
    }
}
