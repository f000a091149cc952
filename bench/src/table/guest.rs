//! `guest`: a developer's job in a User Mode Linux guest, on our virtio-fs, on virtiofsd, and on the guest's
//! own disk and memory.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::ValueEnum;

use super::Plan;
use crate::error::{Doing, Error, Result};
use crate::measure::{Placement, go_on};
use crate::peer::{AtSocket, Program, in_checkout};
use crate::report::{Figure, Report, Unit};
use crate::sheet::{Sheet, sheet, turns};

const MEAN: &str = "geometric mean";

/// Half of the guest's timer resolution of 10 ms, for phases below it.
const LEAST_SECS: f64 = 0.005;

/// Extended attributes, equal on both sides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Xattrs {
    /// None, as by the peer's default.
    #[default]
    Off,
    /// Extended attributes; ours then includes access lists.
    On,
    /// POSIX access lists.
    Acl,
}

impl Xattrs {
    /// Returns the options of our server and of the peer's.
    fn options(self) -> [&'static [&'static str]; 2] {
        match self {
            Self::Off => [&["--xattrs", "off"], &[]],
            Self::On => [&[], &["--xattr"]],
            Self::Acl => [&[], &["--posix-acl=always"]],
        }
    }

    fn condition(self) -> &'static str {
        match self {
            Self::Off => "no extended attributes on either side",
            Self::On => "extended attributes on both sides, access lists on ours",
            Self::Acl => "extended attributes and POSIX access lists on both sides",
        }
    }
}

/// Placement of guest and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Place {
    /// Placement by the kernel.
    Unpinned,
    /// Both on one core.
    OneCore,
    /// Guest and server on a core each.
    TwoCores,
}

impl Place {
    fn label(self) -> &'static str {
        match self {
            Self::Unpinned => "unpinned",
            Self::OneCore => Placement::SameCore.label(),
            Self::TwoCores => Placement::TwoCores.label(),
        }
    }

    /// Assigns cores to the server and to the processes that this thread starts from now on.
    fn take(self, server: Option<u32>) -> Result<()> {
        match self {
            Self::Unpinned => Placement::leave(),
            Self::OneCore => Placement::SameCore.take(server.as_slice()),
            Self::TwoCores => Placement::TwoCores.take(server.as_slice()),
        }
    }
}

const OWN_DISK: &str = "guest's own disk";
const OWN_MEMORY: &str = "guest's own tmpfs";

/// Measures the job with a C project: `lua`, `zstd` or `httpd`.
pub fn run(plan: &Plan, project: &str) -> Result<Report> {
    let mut sheet: Sheet<'_> = sheet!(plan, "guest")?;
    sheet.set("source", &project);
    sheet.set("xattrs", &plan.xattrs.condition());
    let mut report = sheet.report();
    report.name = format!("guest-{project}");
    let job = Job::new(plan, project)?;
    let mut contestants = contestants(&sheet.columns, plan);
    if plan.quick {
        contestants.truncate(1);
    }
    let (rounds, mut phases, mut failed) = (sheet.rounds(), Vec::new(), Vec::new());
    for contestant in turns(rounds, &contestants) {
        let (column, place) = contestant;
        if failed.contains(contestant) {
            continue;
        }
        match job.run(column, *place) {
            Ok(took) => {
                // Printed, since a round takes minutes; a closed standard error is ignored.
                let _unread = writeln!(std::io::stderr(), "{column}, {}", place.label());
                for (phase, secs) in took {
                    report.add(&phase, place.label(), column, Unit::Seconds, secs);
                    if !phases.contains(&phase) {
                        phases.push(phase);
                    }
                }
            }
            Err(error) => {
                report.absent(format!("{column}, {}: {error}", place.label()));
                failed.push(contestant.clone());
            }
        }
    }
    Placement::leave()?;
    for (column, place) in &contestants {
        let mean = mean(&report, &phases, column, place.label());
        report.figures.extend(mean);
    }
    phases.push(MEAN.to_owned());
    // In the order of rows and columns, whichever contestant had the first turn.
    let place_in = |names: &[String], name: &str| names.iter().position(|it| it == name);
    report.figures.sort_by_key(|it| (place_in(&phases, &it.row), place_in(&sheet.columns, &it.column)));
    sheet.rows = phases;
    Ok(sheet.finish(report))
}

/// Returns the columns at their placements.
fn contestants(columns: &[String], plan: &Plan) -> Vec<(String, Place)> {
    let places = if plan.place.is_empty() { Place::value_variants() } else { &plan.place };
    let only: Vec<&str> = plan.only.iter().flat_map(|names| names.split(',')).collect();
    let is_wanted = |column: &&String| only.is_empty() || only.contains(&column.as_str());
    let columns: Vec<&String> = columns.iter().filter(is_wanted).collect();
    places.iter().flat_map(|place| columns.iter().map(|&column| (column.clone(), *place))).collect()
}

/// Returns the geometric mean of the phases, for each round that a contestant has completed.
fn mean(report: &Report, phases: &[String], column: &str, variant: &str) -> Option<Figure> {
    let rows = phases.iter().map(|phase| Some(&report.figure(phase, column, variant)?.rounds));
    let rows: Vec<&Vec<f64>> = rows.collect::<Option<_>>()?;
    let rounds = rows.iter().map(|row| row.len()).min()?;
    let mean = |round: usize| (rows.iter().map(|row| row[round].ln()).sum::<f64>() / rows.len() as f64).exp();
    Figure::of_rounds(MEAN, variant, column, Unit::Seconds, (0..rounds).map(mean).collect())
}

/// Parameters common to all runs of the job.
struct Job {
    run: PathBuf,
    workload: PathBuf,
    source: PathBuf,
    within: PathBuf,
    xattrs: Xattrs,
}

impl Job {
    fn new(plan: &Plan, source: &str) -> Result<Self> {
        let guests = in_checkout(Path::new("tests/guests"))?;
        let fetch = Command::new(guests.join("fetch-source"))
            .arg(source)
            .stdin(Stdio::null())
            .output()
            .doing_to("fetch the source with", &guests)?;
        if !fetch.status.success() {
            let said = String::from_utf8_lossy(&fetch.stderr);
            return Err(Error::Absent(format!("no source of {source}: {}", said.trim())));
        }
        let source = PathBuf::from(String::from_utf8_lossy(&fetch.stdout).trim());
        let (run, workload) = (guests.join("run"), guests.join("workload.sh"));
        Ok(Self { run, workload, source, within: plan.within.clone(), xattrs: plan.xattrs })
    }

    /// Runs the job in a fresh guest; returns phases and seconds.
    fn run(&self, column: &str, place: Place) -> Result<Vec<(String, f64)>> {
        go_on()?;
        let folder = super::folder(&self.within)?;
        let shared = folder.path().join("shared");
        fs::create_dir(&shared).doing_to("make", &shared)?;
        let mut command = Command::new(&self.run);
        command.args(["uml", "--mem", "1G", "--timeout", "900"]);
        let (server, at) = match column {
            OWN_MEMORY => (None, "/dev/shm"),
            OWN_DISK => {
                let disk = folder.path().join("disk");
                make_disk(&disk)?;
                command.arg("--disk").arg(disk);
                (None, "/mnt/disk")
            }
            _ => {
                let server = self.start(column, &shared, &folder.path().join("socket"))?;
                command.arg("--virtiofs").arg(server.socket());
                (Some(server), "/mnt/tombolo")
            }
        };
        command.arg(&self.workload).arg(at).arg(&self.source);
        place.take(server.as_ref().map(AtSocket::server))?;
        // The server ends after the guest.
        phases_of(&mut command)
    }

    /// Starts a column's server, unpinned.
    fn start(&self, column: &str, shared: &Path, socket: &Path) -> Result<AtSocket> {
        Placement::leave()?;
        let [ours, peers] = self.xattrs.options();
        let (program, mode) = column.split_once(' ').unwrap_or((column, "auto"));
        let (program, options) = match program == Program::Virtiofsd.name() {
            true => (Program::Virtiofsd, peers),
            false => (Program::Tombolo, ours),
        };
        AtSocket::virtio_fs(program, shared, socket, mode, options)
    }
}

/// Creates an image of 1 GiB with an empty ext4.
pub(super) fn make_disk(path: &Path) -> Result<()> {
    let file = fs::File::create_new(path).doing_to("make", path)?;
    file.set_len(1 << 30).doing_to("size", path)?;
    let made = Command::new("mkfs.ext4").arg("-q").arg(path).stdin(Stdio::null()).status();
    match made {
        Ok(status) if status.success() => Ok(()),
        _ => Err(Error::Absent("mkfs.ext4 is not installed: apt-get install e2fsprogs".to_owned())),
    }
}

/// Runs a command whose output has the phases of a job in a guest; returns them with their seconds.
pub(super) fn phases_of(command: &mut Command) -> Result<Vec<(String, f64)>> {
    let output = command.stdin(Stdio::null()).output().doing(|| "start a guest".to_owned())?;
    if output.status.success() {
        return Ok(phases(&String::from_utf8_lossy(&output.stdout)));
    }
    let said = [output.stdout, output.stderr].concat();
    let last = String::from_utf8_lossy(&said).trim().lines().next_back().unwrap_or_default().to_owned();
    Err(Error::Server { program: "guest".to_owned(), what: last })
}

/// Parses lines such as `unpack 1.23 s`; a repeated phase counts once.
fn phases(text: &str) -> Vec<(String, f64)> {
    let mut found: Vec<(String, f64)> = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (Some(name), Some(secs), Some("s")) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let Ok(secs) = secs.parse::<f64>() else { continue };
        if found.iter().all(|(other, _)| other != name) {
            found.push((name.to_owned(), secs.max(LEAST_SECS)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_output_is_parsed_into_phases() {
        let text = "unpack    0.17 s\nbuild     left out: no compiler here\nchecksum  0.05 s\nchecksum  9.99 s\n= 3 files\n";
        assert_eq!(phases(text), [("unpack".to_owned(), 0.17), ("checksum".to_owned(), 0.05)]);
        assert_eq!(phases("find 0.00 s"), [("find".to_owned(), LEAST_SECS)]);
    }

    #[test]
    fn mean_is_computed_per_round() {
        let phases = ["unpack", "search"].map(str::to_owned);
        let mut report = Report::new("guest-lua", "x", false);
        for (phase, column, rounds) in [
            ("unpack", "whole", &[1.0, 4.0][..]),
            ("search", "whole", &[4.0, 9.0]),
            // Failed in its second round.
            ("unpack", "part", &[1.0, 2.0]),
            ("search", "part", &[9.0]),
        ] {
            rounds.iter().for_each(|secs| report.add(phase, "unpinned", column, Unit::Seconds, *secs));
        }
        let rounds = |column| mean(&report, &phases, column, "unpinned").map(|figure| figure.rounds);
        let rounded =
            |column| rounds(column).map(|rounds| rounds.iter().map(|it| it.round()).collect::<Vec<_>>());
        assert_eq!((rounded("whole"), rounded("part")), (Some(vec![2.0, 6.0]), Some(vec![3.0])));
        assert_eq!(rounds("none"), None);
    }
}
