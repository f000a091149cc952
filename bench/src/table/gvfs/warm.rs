//! `warm`: a completely cached file through the proxy's front ends, compared with the same front ends on the
//! directory itself.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use fastrand::Rng;

use super::Plan;
use super::site::{Column, READ_ONLY, Side, folder, proxy_of};
use crate::args::GvfsArgs;
use crate::error::{Doing, Result};
use crate::files::Tree;
use crate::measure::{Clock, Contest, Placement, Work};
use crate::nfs::Wait;
use crate::nfs::work::{Direction, transfer};
use crate::peer::{Nfs, Program, find, free_port};
use crate::report::Report;

/// Two equal files, since one is dropped from the page cache and the other is not.
const FILE: &str = "large";
const DROPPED_FILE: &str = "large.dropped";
const SEQUENTIAL: (&str, u32) = ("FUSE: 1 MiB, in order", 1 << 20);
const RANDOM: (&str, u32) = ("FUSE: 4 KiB, at random", 4096);
const NFS_ROWS: [(&str, u32); 2] =
    [("NFS: 1 MiB, 8 outstanding", 1 << 20), ("NFS: 4 KiB, 8 outstanding", 4096)];
const OUTSTANDING: u32 = 8;
/// State of the file's pages in the mount's kernel.
const KEPT: &str = "pages kept";
const DROPPED: &str = "pages dropped";
const COLUMNS: [Column; 3] = [Column::Dir, Column::Exclusive, Column::ReadOnly];
const BARE: &str = "the directory";
const PROXY: &str = "proxy, exclusive";
/// The mount's kernel reads the file by itself.
const PASSED: &str = "proxy, exclusive, read-only";
/// Delay after a close, which reaches the server asynchronously; the kernel reads a file by itself only if no
/// earlier opening reads it otherwise.
const CLOSE_PATIENCE: Duration = Duration::from_millis(200);
const FUSE_TARGET: f64 = 0.95;
const NFS_TARGET: f64 = 0.9;

pub fn run(plan: &Plan, wanted: &GvfsArgs) -> Result<Report> {
    let mut report = plan.report("gvfs-warm", "A completely cached file of 64 MiB, read again");
    let (folder, shared) = folder(wanted)?;
    let mut content = vec![0; Tree::LARGE_BYTES];
    Rng::with_seed(1).fill(&mut content);
    for name in [FILE, DROPPED_FILE] {
        let path = shared.join(name);
        fs::write(&path, &content).doing_to("write", &path)?;
    }
    // The origin receives no more requests, so no WAN link is needed.
    let origin = Nfs::tombolo(&shared, folder.path())?;
    let contest = plan.timed();
    let columns = wanted.columns(&COLUMNS);
    by_mounts(&mut report, &contest, &columns, &shared, &origin, folder.path())?;
    by_nfs(&mut report, &contest, &columns, &shared, &origin, folder.path())?;
    Placement::leave()?;
    report.condition_of(&contest);
    report.condition(format!(
        "the file and the cache are below {}, all of both in the host's page cache. `{KEPT}`: the kernel above the mount has the file's pages; `{DROPPED}`: \
         it is told to drop them (dd iflag=nocache) before each pass, which is not timed. Under {PASSED} the kernel reads the \
         cache's file by itself, whose pages it keeps. One thread, pinned; servers unpinned",
        wanted.disk.display()
    ));
    Ok(report)
}

fn by_mounts(
    report: &mut Report,
    contest: &Contest,
    columns: &[Column],
    shared: &Path,
    origin: &Nfs,
    beside: &Path,
) -> Result<()> {
    let program = || find(Program::Tombolo).map(Command::new);
    let dir = format!("dir:{}", shared.display());
    let bare = Side::mounted(program()?, &dir, &beside.join("bare"))?;
    let cached = Side::cached(program()?, &origin.url(), "exclusive", &[], &beside.join("proxied"))?;
    let options = READ_ONLY.map(OsStr::new);
    let passed = Side::cached(program()?, &origin.url(), "exclusive", &options, &beside.join("read-only"))?;
    for (row, piece_bytes) in [SEQUENTIAL, RANDOM] {
        let mut entrants = Vec::new();
        let proxies = [(Column::Exclusive, PROXY, &cached), (Column::ReadOnly, PASSED, &passed)];
        let sides = [(Column::Dir, BARE, &bare)].into_iter().chain(proxies);
        for (_, column, side) in sides.filter(|side| columns.contains(&side.0)) {
            for (variant, file) in [(KEPT, FILE), (DROPPED, DROPPED_FILE)] {
                let path = side.root.join(file);
                let work = reads(&path, piece_bytes, row == RANDOM.0, variant == DROPPED);
                report.enter(&mut entrants, row, (column, variant), work, &side.servers(), Placement::Free);
            }
        }
        let before = proxies.map(|(.., side)| side.requests());
        report.contest(row, contest, entrants);
        for ((_, column, side), before) in proxies.into_iter().zip(before) {
            let found = before.and_then(|before| Ok(side.requests()?.since(&before).text()));
            let found = found.unwrap_or_else(|error| error.to_string());
            report.target(&format!("{row}: requests that reached the {column}"), "counted", found, None);
            for variant in [KEPT, DROPPED] {
                report.compare_cells(row, (column, variant), (BARE, variant), Some(FUSE_TARGET));
            }
        }
    }
    Ok(())
}

/// Reads the pieces of a file repeatedly, each once per pass.
fn reads(path: &Path, piece_bytes: u32, at_random: bool, drops: bool) -> Result<Work<'static>> {
    // Fetches all of it.
    File::open(path).and_then(|mut file| io::copy(&mut file, &mut io::sink())).doing_to("read", path)?;
    thread::sleep(CLOSE_PATIENCE);
    let (file, path) = (File::open(path).doing_to("open", path)?, path.to_owned());
    let mut pieces: Vec<u64> = (0..Tree::LARGE_BYTES as u64 / u64::from(piece_bytes)).collect();
    if at_random {
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

fn by_nfs(
    report: &mut Report,
    contest: &Contest,
    columns: &[Column],
    shared: &Path,
    origin: &Nfs,
    beside: &Path,
) -> Result<()> {
    let cache = crate::table::folder(beside)?;
    let command = Command::new(find(Program::Tombolo)?);
    let command = proxy_of(command, &origin.url(), cache.path(), "exclusive");
    let proxy = Nfs::by_command(command, free_port()?, shared, beside)?.ready()?;
    for (row, piece_bytes) in NFS_ROWS {
        let mut entrants = Vec::new();
        let servers = [(Column::Dir, BARE, origin), (Column::Exclusive, PROXY, &proxy)];
        for (_, column, server) in servers.into_iter().filter(|server| columns.contains(&server.0)) {
            let work = transfer(server, FILE, Wait::Sleep, Direction::Read, piece_bytes, OUTSTANDING);
            let work = work.and_then(|(mut work, _)| {
                // Fetches all of it.
                work.run((Tree::LARGE_BYTES / piece_bytes as usize) as u64, &mut Clock::new())?;
                Ok(work)
            });
            report.enter(&mut entrants, row, (column, ""), work, &[server.server()], Placement::Free);
        }
        report.contest(row, contest, entrants);
        report.compare_cells(row, (PROXY, ""), (BARE, ""), Some(NFS_TARGET));
    }
    Ok(())
}
