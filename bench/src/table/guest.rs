//! `guest`: a developer's job in a User Mode Linux guest, on our virtio-fs, on virtiofsd, and on the guest's
//! own disk and memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::ValueEnum;

use super::Plan;
use crate::error::{Doing, Error, Result};
use crate::measure::{Placement, go_on};
use crate::peer::{AtSocket, Program, in_checkout, virtio_fs};
use crate::report::{Figure, Report, Unit};

/// Targets: no phase slower than with the peer, and all of them together faster.
const TARGET: f64 = 1.0;
const MEAN: &str = "geometric mean";
const MEAN_TARGET: f64 = 1.3;

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
    const ALL: [Place; 3] = [Place::Unpinned, Place::OneCore, Place::TwoCores];

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

/// Selection of measurements.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    /// C project: `lua`, `zstd` or `httpd`.
    pub source: &'a str,
    /// Columns; empty for all.
    pub columns: &'a [String],
    /// Placements; empty for all.
    pub places: &'a [Place],
    pub xattrs: Xattrs,
}

impl<'a> Wanted<'a> {
    /// Returns a selection of everything for one project, without extended attributes.
    pub fn new(source: &'a str) -> Self {
        Self { source, columns: &[], places: &[], xattrs: Xattrs::Off }
    }
}

/// Comparisons of ours with the peer's equivalent policy, and with the peer's default.
const PAIRS: [(&str, &str); 3] = [
    ("tombolo auto", "virtiofsd auto"),
    ("tombolo strict", "virtiofsd never"),
    ("tombolo always", "virtiofsd always"),
];
const OWN_DISK: &str = "guest's own disk";
const OWN_MEMORY: &str = "guest's own tmpfs";
const COLUMNS: [&str; 8] = [
    "tombolo auto",
    "virtiofsd auto",
    "tombolo strict",
    "virtiofsd never",
    "tombolo always",
    "virtiofsd always",
    OWN_DISK,
    OWN_MEMORY,
];
/// Rounds of a full run: each boots a guest for each column.
const ROUNDS: usize = 3;

/// Seconds of a phase, by round.
type Times = BTreeMap<(String, (&'static str, Place)), Vec<f64>>;

pub fn run(plan: &Plan, wanted: &Wanted<'_>) -> Result<Report> {
    let source = wanted.source;
    let mut report = plan.report(
        &format!("guest-{source}"),
        &format!(
            "A job in a UML guest: {source}'s source unpacked, built, searched, listed, copied, deleted"
        ),
    );
    let job = Job::new(plan, source, wanted.xattrs)?;
    let rounds = if plan.rounds_given { plan.rounds } else { plan.scaled(ROUNDS, 1) };
    let mut contestants = contestants(wanted);
    if plan.quick {
        contestants.truncate(1);
    }
    let mut times = Times::new();
    let mut phases: Vec<String> = Vec::new();
    for round in 0..rounds {
        let first = round % contestants.len().max(1);
        contestants.rotate_left(first);
        contestants.retain(|&(column, place)| match job.run(column, place) {
            Ok(took) => {
                progress(round, rounds, column, place);
                for (phase, secs) in took {
                    if !phases.contains(&phase) {
                        phases.push(phase.clone());
                    }
                    times.entry((phase, (column, place))).or_default().push(secs);
                }
                true
            }
            Err(error) => {
                report.absent(format!("{column}, {}: {error}", place.label()));
                false
            }
        });
    }
    Placement::leave()?;
    times.extend(means(&phases, &times));
    phases.push(MEAN.to_owned());
    for phase in &phases {
        for column in COLUMNS {
            for place in Place::ALL {
                let Some(rounds) = times.get(&(phase.clone(), (column, place))) else { continue };
                let rounds = rounds.clone();
                report.figures.extend(Figure::of_rounds(phase, place.label(), column, Unit::Seconds, rounds));
            }
        }
        compare(&mut report, phase);
    }
    report.condition(format!(
        "{rounds} rounds, in each of which every contestant has a fresh guest (1 GB) and an empty directory; times are the \
         guest's own, to 10 ms"
    ));
    report.condition(wanted.xattrs.condition());
    report.condition("the shared directories, the guest's disk (ext4, cache=unsafe) and the tarball lie in the host's memory");
    Ok(report)
}

/// Returns the columns at their placements.
fn contestants(wanted: &Wanted<'_>) -> Vec<(&'static str, Place)> {
    let places = if wanted.places.is_empty() { &Place::ALL } else { wanted.places };
    let is_wanted =
        |column: &&str| wanted.columns.is_empty() || wanted.columns.iter().any(|other| other == column);
    let columns = || COLUMNS.into_iter().filter(is_wanted);
    places.iter().flat_map(|&place| columns().map(move |column| (column, place))).collect()
}

/// Returns the geometric mean of the phases, for each round that a contestant has completed.
fn means(phases: &[String], times: &Times) -> Times {
    let contestants: BTreeSet<_> = times.keys().map(|(_, contestant)| *contestant).collect();
    let mean = |contestant| {
        let rows = phases.iter().map(|phase| times.get(&(phase.clone(), contestant)));
        let rows: Vec<_> = rows.collect::<Option<_>>()?;
        let rounds = rows.iter().map(|row| row.len()).min()?;
        let mean =
            |round: usize| (rows.iter().map(|row| row[round].ln()).sum::<f64>() / rows.len() as f64).exp();
        Some(((MEAN.to_owned(), contestant), (0..rounds).map(mean).collect()))
    };
    contestants.into_iter().filter_map(mean).collect()
}

/// Prints the progress to standard error, since a round takes minutes.
fn progress(round: usize, rounds: usize, column: &str, place: Place) {
    // A closed standard error is ignored.
    let _unread = writeln!(std::io::stderr(), "round {} of {rounds}: {column}, {}", round + 1, place.label());
}

fn compare(report: &mut Report, phase: &str) {
    let target = if phase == MEAN { MEAN_TARGET } else { TARGET };
    for place in Place::ALL.map(Place::label) {
        for (ours, other) in PAIRS {
            report.compare_cells(phase, (ours, place), (other, place), Some(target));
        }
        report.compare_cells(phase, (PAIRS[0].0, place), (OWN_DISK, place), None);
    }
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
    fn new(plan: &Plan, source: &str, xattrs: Xattrs) -> Result<Self> {
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
        Ok(Self { run, workload, source, within: plan.within.clone(), xattrs })
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
        let output = command.stdin(Stdio::null()).output().doing_to("start", &self.run)?;
        drop(server);
        if !output.status.success() {
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&said);
            let last = said.trim().lines().next_back().unwrap_or_default();
            return Err(Error::Server { program: "guest".to_owned(), what: last.to_owned() });
        }
        Ok(phases(&String::from_utf8_lossy(&output.stdout)))
    }

    /// Starts a column's server, unpinned.
    fn start(&self, column: &str, shared: &Path, socket: &Path) -> Result<AtSocket> {
        Placement::leave()?;
        let [ours, peers] = self.xattrs.options();
        match column.split_once(' ') {
            Some((program, mode)) if program == Program::Virtiofsd.name() => {
                virtio_fs::virtiofsd(shared, socket, mode, peers)
            }
            Some((_, mode)) => virtio_fs::tombolo(shared, socket, mode, ours),
            None => virtio_fs::tombolo(shared, socket, "auto", ours),
        }
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

/// Parses lines such as `unpack 1.23 s`; a repeated phase counts once.
pub(super) fn phases(text: &str) -> Vec<(String, f64)> {
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
        let [whole, part] = [("tombolo auto", Place::Unpinned), ("virtiofsd auto", Place::OneCore)];
        let times = Times::from([
            ((phases[0].clone(), whole), vec![1.0, 4.0]),
            ((phases[1].clone(), whole), vec![4.0, 9.0]),
            // Failed in its second round.
            ((phases[0].clone(), part), vec![1.0, 2.0]),
            ((phases[1].clone(), part), vec![9.0]),
        ]);
        let means: Vec<Vec<f64>> = means(&phases, &times).into_values().collect();
        let rounded: Vec<Vec<f64>> =
            means.into_iter().map(|rounds| rounds.into_iter().map(f64::round).collect()).collect();
        assert_eq!(rounded, [vec![2.0, 6.0], vec![3.0]]);
    }
}
