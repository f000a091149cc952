//! `warm`: a completely cached file through the proxy's front ends, compared with the same front ends on the
//! directory itself.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use serde::Deserialize;

use super::Plan;
use super::site::{Column, READ_ONLY, Side, folder, proxy_of};
use crate::error::{Doing, Result};
use crate::files::Tree;
use crate::measure::{Clock, Contest, Placement, Work};
use crate::nfs::Wait;
use crate::nfs::work::{Direction, transfer};
use crate::peer::{Nfs, Program, find, free_port};
use crate::report::Report;
use crate::sheet::{Row, Sheet, sheet};

/// Two equal files, since one is dropped from the page cache and the other is not.
const FILE: &str = "large";
const DROPPED_FILE: &str = "large.dropped";
const OUTSTANDING: u32 = 8;
/// State of the file's pages in the mount's kernel.
const KEPT: &str = "pages kept";
const DROPPED: &str = "pages dropped";
/// Delay after a close, which reaches the server asynchronously; the kernel reads a file by itself only if no
/// earlier opening reads it otherwise.
const CLOSE_PATIENCE: Duration = Duration::from_millis(200);

/// Operation of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Read {
    /// Through a mount: pieces of 1 MiB in order, or of 4 KiB at random.
    Sequential,
    Random,
    /// Over NFS.
    Large,
    Small,
}

impl Read {
    fn piece_bytes(self) -> u32 {
        if matches!(self, Self::Sequential | Self::Large) { 1 << 20 } else { 4096 }
    }
}

/// Name of a column: the directory itself takes the place of its mount.
fn name(column: Column) -> &'static str {
    if column == Column::Dir { "the directory" } else { column.name() }
}

pub fn run(plan: &Plan) -> Result<Report> {
    let sheet: Sheet<'_, Row<Read>, Column> = sheet!(plan, "gvfs-warm")?;
    let mut report = sheet.report();
    let (folder, shared) = folder(plan)?;
    let mut content = vec![0; Tree::LARGE_BYTES];
    Rng::with_seed(1).fill(&mut content);
    for name in [FILE, DROPPED_FILE] {
        let path = shared.join(name);
        fs::write(&path, &content).doing_to("write", &path)?;
    }
    // The origin receives no more requests, so no WAN link is needed.
    let origin = Nfs::tombolo(&shared, folder.path())?;
    let columns = plan.columns(&sheet.columns, Column::id)?;
    let is_by_nfs = |row: &&Row<Read>| matches!(row.work, Read::Large | Read::Small);
    let (by_nfs, by_mounts): (Vec<_>, Vec<_>) = sheet.rows.iter().partition(is_by_nfs);
    let bed = Bed { contest: plan.timed(), columns, shared: &shared, origin: &origin, beside: folder.path() };
    bed.read_mounts(&mut report, &by_mounts)?;
    bed.read_servers(&mut report, &by_nfs)?;
    Placement::leave()?;
    Ok(sheet.finish(report))
}

struct Bed<'a> {
    contest: Contest,
    columns: Vec<Column>,
    shared: &'a Path,
    origin: &'a Nfs,
    beside: &'a Path,
}

impl Bed<'_> {
    fn read_mounts(&self, report: &mut Report, rows: &[&Row<Read>]) -> Result<()> {
        let program = || find(Program::Tombolo).map(Command::new);
        let (dir, url, at) =
            (format!("dir:{}", self.shared.display()), self.origin.url(), |name| self.beside.join(name));
        let sides = [
            (Column::Dir, Side::mounted(program()?, &dir, &at("bare"))?),
            (Column::Exclusive, Side::cached(program()?, &url, "exclusive", &[], &at("proxied"))?),
            (Column::ReadOnly, Side::cached(program()?, &url, "exclusive", &READ_ONLY, &at("read-only"))?),
        ];
        for Row { name: row, work: read } in rows {
            let mut entrants = Vec::new();
            for (column, side) in sides.iter().filter(|(column, _)| self.columns.contains(column)) {
                for (variant, file) in [(KEPT, FILE), (DROPPED, DROPPED_FILE)] {
                    let work = reads(&side.root.join(file), *read, variant == DROPPED);
                    let cell = (name(*column), variant);
                    report.enter(&mut entrants, row, cell, work, &side.servers(), Placement::Free);
                }
            }
            let proxies = sides.iter().filter(|(column, _)| *column != Column::Dir);
            let before: Vec<_> = proxies.map(|(column, side)| (column, side, side.requests())).collect();
            report.contest(row, &self.contest, entrants);
            for (column, side, before) in before {
                let found = before.and_then(|before| Ok(side.requests()?.since(&before).text()));
                let found = found.unwrap_or_else(|error| error.to_string());
                let what = format!("{row}: requests that reached the {}", column.name());
                report.target(&what, "counted", found, None);
            }
        }
        Ok(())
    }

    fn read_servers(&self, report: &mut Report, rows: &[&Row<Read>]) -> Result<()> {
        let cache = crate::table::folder(self.beside)?;
        let command = Command::new(find(Program::Tombolo)?);
        let command = proxy_of(command, &self.origin.url(), cache.path(), "exclusive");
        let proxy = Nfs::by_command(command, free_port()?, self.shared, self.beside)?.ready()?;
        for Row { name: row, work: read } in rows {
            let (mut entrants, piece_bytes) = (Vec::new(), read.piece_bytes());
            let servers = [(Column::Dir, self.origin), (Column::Exclusive, &proxy)];
            for (column, server) in servers.into_iter().filter(|server| self.columns.contains(&server.0)) {
                let work = transfer(server, FILE, Wait::Sleep, Direction::Read, piece_bytes, OUTSTANDING);
                let work = work.and_then(|(mut work, _)| {
                    // Fetches all of it.
                    work.run((Tree::LARGE_BYTES / piece_bytes as usize) as u64, &mut Clock::new())?;
                    Ok(work)
                });
                report.enter(
                    &mut entrants,
                    row,
                    (name(column), ""),
                    work,
                    &[server.server()],
                    Placement::Free,
                );
            }
            report.contest(row, &self.contest, entrants);
        }
        Ok(())
    }
}

/// Reads the pieces of a file repeatedly, each once per pass.
fn reads(path: &Path, read: Read, drops: bool) -> Result<Work<'static>> {
    let piece_bytes = read.piece_bytes();
    // Fetches all of it.
    File::open(path).and_then(|mut file| io::copy(&mut file, &mut io::sink())).doing_to("read", path)?;
    thread::sleep(CLOSE_PATIENCE);
    let (file, path) = (File::open(path).doing_to("open", path)?, path.to_owned());
    let mut pieces: Vec<u64> = (0..Tree::LARGE_BYTES as u64 / u64::from(piece_bytes)).collect();
    if read == Read::Random {
        Rng::with_seed(1).shuffle(&mut pieces);
    }
    let mut buffer = vec![0; piece_bytes as usize];
    let mut pass = move |clock: &mut Clock, count: usize| {
        if drops {
            forget(&path)?;
        }
        clock.start();
        let pieces = pieces.get(..count).unwrap_or(&pieces);
        for piece in pieces {
            file.read_exact_at(&mut buffer, piece * u64::from(piece_bytes)).doing_to("read", &path)?;
        }
        clock.lap_of(pieces.len() as u64);
        Ok(pieces.len())
    };
    pass(&mut Clock::new(), usize::MAX)?;
    let run = move |count, clock: &mut Clock| {
        let mut left = usize::try_from(count).unwrap_or(usize::MAX);
        while left > 0 {
            left -= pass(clock, left)?;
        }
        Ok(())
    };
    Ok(Work::new(run).bytes(u64::from(piece_bytes)))
}

/// Drops the pages of a file from the page cache.
fn forget(path: &Path) -> Result<()> {
    let mut from = std::ffi::OsString::from("if=");
    from.push(path);
    let mut command = Command::new("dd");
    command.arg(from).args(["of=/dev/null", "iflag=nocache", "count=0", "status=none"]);
    command.status().doing(|| "start dd".to_owned()).map(drop)
}
