//! Parts of `atomic` that measure whole programs: the copies that a client makes of each byte, the copy of a
//! tree to the server, and a build over a mount.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{BIODS, OURS, Serves, TestHost, WRITTEN};
use crate::drive::{Direction, Job, Kind};
use crate::error::{Doing, Result, same};
use crate::files::{Place, fill};
use crate::measure::{Clock, Moved, MovedMeter, Placement, Spread, Work};
use crate::nfs::Link;
use crate::nfs::work::Driver;
use crate::peer::{Nfs, RSYNC, Server, TOMBOLO, completed, find, free_port};
use crate::report::{Ratio, Report, Unit};
use crate::sheet::{Sheet, measured, sheet};
use crate::table::mounts::measure_steps;

/// Rows of [`copies`], with the target of our client, if there is one.
const MOVES: [(Direction, &str, &str, Option<f64>); 2] = [
    (
        Direction::Write,
        "copies of a byte that is written",
        "all of the file, sent from the program's memory",
        Some(1.0),
    ),
    (
        Direction::Read,
        "copies of a byte that is read",
        "all of the file, received straight into the program's memory",
        None,
    ),
];
const LIMIT: u32 = 8;
const PIECES: [(&str, usize); 2] = [("requests of 32 KiB", 32 << 10), ("requests of 1 MiB", 1 << 20)];

/// Counts the copies of each byte in user space, from the arguments of the client's system calls.
pub fn copies(host: &TestHost<'_>) -> Result<Report> {
    let sheet: Sheet<'_> = host.described(sheet!(host.plan, "atomic-copies")?);
    let mut report = sheet.report();
    let server = host.server(Link::Loopback, Serves::Memory)?;
    let file_bytes = sheet.number("mib") << 20;
    for (column, kind) in [(OURS, Kind::Tombolo), (BIODS, Kind::Biods)] {
        for (variant, piece_bytes) in PIECES {
            let done = MOVES.into_iter().try_for_each(|(direction, row, other, target)| {
                let job = Job { direction, limit: LIMIT, piece_bytes, file_bytes };
                let direct = moved_directly(host, &server, kind, job)?;
                let copied = (file_bytes as u64).saturating_sub(direct);
                report.add(row, variant, column, Unit::Times, copied as f64 / file_bytes as f64);
                if column == OURS {
                    let (ours, share) = (format!("{column}, {variant}"), direct as f64 / file_bytes as f64);
                    report.ratios.push(Ratio::new(row, &ours, other, Spread::single(share), target));
                }
                Ok(())
            });
            report.or_absent(&format!("{column}, {variant}"), done)?;
        }
    }
    Ok(sheet.finish(report))
}

/// Returns how many bytes of a file the kernel takes from the program's memory, or puts there.
fn moved_directly(host: &TestHost<'_>, server: &Nfs, kind: Kind, job: Job) -> Result<u64> {
    host.lay_out(Serves::Memory, &job)?;
    let mut driver = Driver::start(kind, server, WRITTEN)?;
    let meter = MovedMeter::follow(driver.process())?;
    // The first run mounts; the memory of the data has its address from then on.
    driver.run(&job.to_string())?;
    meter.look_at(std::slice::from_ref(&memory(&mut driver, job.file_bytes)?));
    driver.run(&job.to_string())?;
    let Moved { sent_inside, received_inside, .. } = meter.moved();
    Ok(if job.direction == Direction::Read { received_inside } else { sent_inside })
}

/// Returns the range of the program's own memory.
fn memory(driver: &mut Driver, file_bytes: usize) -> Result<Range<u64>> {
    let (at, _) = driver.run(&format!("memory {file_bytes}"))?;
    let at = u64::try_from(at.as_nanos()).unwrap_or_default();
    Ok(at..at + file_bytes as u64)
}

const PER_FOLDER: usize = 100;
const SIZES_KIB: usize = 8;

/// Measures programs that copy a tree of many small files to the server.
pub fn tree(host: &TestHost<'_>) -> Result<Report> {
    const ROW: &str = "files copied";
    let sheet: Sheet<'_> = host.described(sheet!(host.plan, "atomic-tree")?);
    let (mut report, files) = (sheet.report(), sheet.number("files"));
    let tree = host.own("tree")?;
    let file =
        |number| (format!("d{}/f{number}", number / PER_FOLDER).into(), (1 + number % SIZES_KIB) << 10);
    fill(&tree, (0..files).map(file))?;
    let server = host.server(Link::Loopback, Serves::Memory)?;
    let rsync = rsync_daemon(host);
    let ours = find(TOMBOLO).map(|path| (path, &["-q", "cp", "-r"][..], tree.clone(), server.url()));
    let (_daemon, rsync) = match rsync {
        Ok((daemon, url)) => {
            (Some(daemon), find(RSYNC).map(|path| (path, &["-r", "--whole-file"][..], tree.join(""), url)))
        }
        Err(error) => (None, Err(error)),
    };
    let mut entrants = Vec::new();
    for (column, program) in [(OURS, ours), ("rsync", rsync)] {
        let copy = program.map(|(program, words, from, to)| {
            let command = move |name: &str| {
                let mut command = Command::new(&program);
                command.args(words).arg(&from).arg(format!("{to}/{name}"));
                command
            };
            copying(command, host.memory.shared(), files)
        });
        report.enter(&mut entrants, ROW, (column, ""), copy, &[], None::<Placement>);
    }
    report.contest(ROW, &sheet.contest(host.contest()), entrants);
    Ok(sheet.finish(report))
}

/// Starts rsync's daemon; returns the URL of the served directory too.
fn rsync_daemon(host: &TestHost<'_>) -> Result<(Server, String)> {
    let port = free_port()?.port();
    let configuration = host.own("rsync")?.join("rsyncd.conf");
    let text = format!(
        "use chroot = no\nuid = root\ngid = root\naddress = 127.0.0.1\nport = {port}\n[tree]\npath = {}\nread only = no\n",
        host.memory.shared().display()
    );
    fs::write(&configuration, text).doing_to("write", &configuration)?;
    let mut command = Command::new(find(RSYNC)?);
    command.args(["--daemon", "--no-detach", "--config"]).arg(&configuration);
    let server = Server::listening("rsync", &mut command, &[port])?;
    Ok((server, format!("rsync://127.0.0.1:{port}/tree")))
}

/// Copies the tree to a new directory, which is then removed.
fn copying(command: impl Fn(&str) -> Command + 'static, shared: PathBuf, files: usize) -> Work<'static> {
    let mut number = 0;
    let run = move |count, clock: &mut Clock| {
        for _ in 0..count {
            number += 1;
            let to = format!("copy-{}-{number}", std::process::id());
            clock.start();
            completed("copying", &mut command(&to))?;
            clock.lap_of(files as u64);
            let target = shared.join(&to);
            let there = count_files(&target)?;
            fs::remove_dir_all(&target).doing_to("remove", &target)?;
            same("copying", there, files)?;
        }
        Ok(())
    };
    Work::new(run).count_max(1).per_second(true)
}

fn count_files(folder: &Path) -> Result<usize> {
    let mut files = 0;
    for entry in fs::read_dir(folder).doing_to("list", folder)?.flatten() {
        files += if entry.path().is_dir() { count_files(&entry.path())? } else { 1 };
    }
    Ok(files)
}

/// Measures the build of a C project over an NFS mount, compared with a local directory.
pub fn build(host: &TestHost<'_>) -> Result<Report> {
    let mut sheet = host.described(sheet!(host.plan, "atomic-build")?);
    // Targets without external libraries.
    let target = if host.plan.quick { "lapi.o" } else { "posix" };
    sheet.set("target", &target);
    let mut job = sheet.script("lua")?.with_archive()?;
    job.arguments.push(target.into());
    let place = Place::within(&host.plan.within)?;
    measured(sheet, |sheet, report| measure_steps(sheet, report, &place, &job))
}
