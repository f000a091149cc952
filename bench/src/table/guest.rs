//! `guest`: a developer's job in a User Mode Linux guest, on our virtio-fs, on virtiofsd, and on the guest's
//! own disk and memory.
//!
//! `guest-disk`: fio and PostgreSQL on the disks of a User Mode Linux guest: ours and QEMU's storage daemon's
//! by virtio-blk, and the guest's own driver for images.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use clap::ValueEnum;
use tempfile::TempDir;

use crate::error::{Doing, Error, Result};
use crate::files::copy_with_holes;
use crate::measure::{CostMeter, Placement, go_on};
use crate::peer::{AtSocket, STORAGE_DAEMON, TOMBOLO, VIRTIOFSD, completed, in_checkout};
use crate::report::{Figure, Report, Unit};
use crate::sheet::{Sheet, sheet, turns};
use crate::table::{Plan, folder};

const MEAN: &str = "geometric mean";

/// Half of the guest's timer resolution of 10 ms, for phases below it.
const LEAST_SECS: f64 = 0.005;

/// Extended attributes that our server and the peer's offer.
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
fn contestants(columns: &[String], plan: &Plan) -> Vec<(String, Placement)> {
    let places = if plan.place.is_empty() { Placement::value_variants() } else { &plan.place };
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
        let guests = in_checkout("tests/guests")?;
        let fetched = completed("fetch-source", Command::new(guests.join("fetch-source")).arg(source));
        let absent = |error| Error::Absent(format!("no source of {source}: {error}"));
        let source = PathBuf::from(fetched.map_err(absent)?.trim());
        let (run, workload) = (guests.join("run"), guests.join("workload.sh"));
        Ok(Self { run, workload, source, within: plan.within.clone(), xattrs: plan.xattrs })
    }

    /// Runs the job in a fresh guest; returns phases and seconds.
    fn run(&self, column: &str, place: Placement) -> Result<Vec<(String, f64)>> {
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
                command.arg("--virtiofs").arg(&server.place);
                (Some(server), "/mnt/tombolo")
            }
        };
        command.arg(&self.workload).arg(at).arg(&self.source);
        place.take(server.as_ref().map(|server| server.server.id()).as_slice())?;
        // The server ends after the guest.
        phases_of(&mut command)
    }

    /// Starts a column's server, unpinned.
    fn start(&self, column: &str, shared: &Path, socket: &Path) -> Result<AtSocket> {
        Placement::leave()?;
        let [ours, peers] = self.xattrs.options();
        let (program, mode) = column.split_once(' ').unwrap_or((column, "auto"));
        let (program, options) = match program == VIRTIOFSD {
            true => (VIRTIOFSD, peers),
            false => (TOMBOLO, ours),
        };
        AtSocket::virtio_fs(program, shared, socket, mode, options)
    }
}

/// Creates an image of 1 GiB with an empty ext4.
pub(super) fn make_disk(path: &Path) -> Result<()> {
    let file = fs::File::create_new(path).doing_to("make", path)?;
    file.set_len(1 << 30).doing_to("size", path)?;
    completed("mkfs.ext4 of e2fsprogs", Command::new("mkfs.ext4").arg("-q").arg(path)).map(drop)
}

/// Runs a command whose output has the phases of a job in a guest; returns them with their seconds.
pub(super) fn phases_of(command: &mut Command) -> Result<Vec<(String, f64)>> {
    completed("a guest", command).map(|said| phases(&said))
}

/// Parses lines such as `unpack 1.23 s` or, of single calls, `stat 912 ns`; a repeated phase counts once.
fn phases(text: &str) -> Vec<(String, f64)> {
    let mut found: Vec<(String, f64)> = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (Some(name), Some(time), Some(unit)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let secs = match (time.parse::<f64>(), unit) {
            (Ok(secs), "s") => secs.max(LEAST_SECS),
            (Ok(ns), "ns") => ns / 1e9,
            _ => continue,
        };
        if found.iter().all(|(other, _)| other != name) {
            found.push((name.to_owned(), secs));
        }
    }
    found
}

/// Name of the guest's own disk; the other disks have the names of their servers' programs.
const OWN: &str = "own";
/// Result of a phase of the disks: operations or bytes per second, and the server's processor share.
struct DiskPhase {
    disk: String,
    row: String,
    unit: Unit,
    rate: f64,
    share: f64,
}

/// Measures fio and PostgreSQL on the guest's disks.
pub fn disks(sheet: &mut Sheet<'_>, report: &mut Report) -> Result<()> {
    let (rounds, seconds) = (sheet.rounds(), sheet.number("seconds"));
    let images = Images::make(&sheet.plan.disk)?;
    Placement::leave()?;
    let mut servers = Vec::new();
    for program in [TOMBOLO, STORAGE_DAEMON] {
        let name = program;
        let socket = images.place.path().join(format!("{name}.sock"));
        match AtSocket::virtio_blk(program, &images.image(name)?, &socket, false) {
            Ok(server) => servers.push((name, server)),
            Err(error) => report.absent(error.to_string()),
        }
    }
    let mut phases = images.measure(rounds, seconds, &servers)?;
    phases.sort_by(|one, other| (&one.row, &one.disk).cmp(&(&other.row, &other.disk)));
    for DiskPhase { disk, row, unit, rate, share } in phases {
        report.add(&row, "", &disk, unit, rate);
        if disk != OWN {
            report.add(&format!("{row}, server's processor"), "", &disk, Unit::Percent, share * 100.0);
        }
    }
    Ok(())
}

/// Images of the disks, and the scripts that fill and use them.
struct Images {
    run: PathBuf,
    workload: PathBuf,
    place: TempDir,
}

impl Images {
    /// Creates the first image with a guest.
    fn make(disk: &Path) -> Result<Self> {
        let guests = in_checkout("tests/guests")?;
        let (run, workload) = (guests.join("run"), guests.join("disk-workload.sh"));
        let images = Self { run, workload, place: folder(disk)? };
        make_disk(&images.own())?;
        images.guest(&[], &["make".to_owned()], &[])?;
        Ok(images)
    }

    fn own(&self) -> PathBuf {
        self.place.path().join(OWN)
    }

    /// Copies the first image.
    fn image(&self, name: &str) -> Result<PathBuf> {
        let image = self.place.path().join(name);
        copy_with_holes(&self.own(), &image).map_err(|error| Error::Absent(error.to_string()))?;
        Ok(image)
    }

    fn measure(&self, rounds: usize, seconds: usize, servers: &[(&str, AtSocket)]) -> Result<Vec<DiskPhase>> {
        let mut words = vec!["run".to_owned(), rounds.to_string(), seconds.to_string()];
        // The guest numbers the disks in the order of the options.
        words.extend(servers.iter().zip('a'..).map(|((name, _), letter)| format!("{name}=/dev/vd{letter}")));
        let options: Vec<_> =
            servers.iter().flat_map(|(_, server)| [OsStr::new("--blk"), server.place.as_os_str()]).collect();
        self.guest(&options, &words, servers)
    }

    /// Runs a part of the job in a fresh guest. The server's processor time is measured between lines of the
    /// guest's output.
    fn guest(
        &self,
        options: &[&OsStr],
        words: &[String],
        servers: &[(&str, AtSocket)],
    ) -> Result<Vec<DiskPhase>> {
        go_on()?;
        let mut command = Command::new(&self.run);
        command.args(["uml", "--mem", "1G", "--timeout", "7200", "--disk"]).arg(self.own()).args(options);
        command.arg(&self.workload).args(words).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut guest = command.spawn().doing_to("start", &self.run)?;
        let meters: Vec<_> = servers
            .iter()
            .map(|(name, server)| (*name, CostMeter::new(&[server.server.id()], None)))
            .collect();
        let costs = || -> Vec<f64> { meters.iter().map(|(_, meter)| meter.now().server_cpu_ns).collect() };
        let (mut phases, mut other) = (Vec::new(), String::new());
        let (mut begun, mut before) = (Instant::now(), costs());
        for line in guest.stdout.take().into_iter().flat_map(|said| BufReader::new(said).lines()) {
            let line = line.doing_to("read what is said by", &self.run)?;
            let (took_ns, after) = (begun.elapsed().as_nanos() as f64, costs());
            if let Some(mut phase) = disk_phase(&line) {
                let index = meters.iter().position(|(name, _)| *name == phase.disk);
                phase.share = index.map_or(0.0, |index| (after[index] - before[index]) / took_ns);
                phases.push(phase);
            } else {
                other = line;
            }
            (begun, before) = (Instant::now(), after);
        }
        match guest.wait().doing_to("wait for", &self.run)? {
            status if status.success() => Ok(phases),
            status => Err(Error::Server { program: "guest".to_owned(), what: format!("{status}: {other}") }),
        }
    }
}

/// Parses a line such as `own fsync 123.4 /s`.
fn disk_phase(line: &str) -> Option<DiskPhase> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let &[disk, row, number, unit] = words.as_slice() else { return None };
    let unit = match unit {
        "/s" => Unit::PerSecond,
        "B/s" => Unit::BytesPerSecond,
        _ => return None,
    };
    let rate = number.parse().ok().filter(|rate| *rate > 0.0)?;
    Some(DiskPhase { disk: disk.to_owned(), row: row.to_owned(), unit, rate, share: 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_output_is_parsed_into_phases() {
        let text = "unpack    0.17 s\nbuild     left out: no compiler here\nchecksum  0.05 s\nchecksum  9.99 s\n= 3 files\n";
        assert_eq!(phases(text), [("unpack".to_owned(), 0.17), ("checksum".to_owned(), 0.05)]);
        assert_eq!(phases("find 0.00 s"), [("find".to_owned(), LEAST_SECS)]);
        assert_eq!(phases("nfs.stat 500 ns"), [("nfs.stat".to_owned(), 5e-7)]);
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

    #[test]
    fn disk_job_output_is_parsed_into_phases() {
        let read = |line| disk_phase(line).map(|phase| (phase.disk, phase.row, phase.rate, phase.unit));
        let expected = |row: &str, rate, unit| Some(("own".to_owned(), row.to_owned(), rate, unit));
        assert_eq!(read("own fsync 123.5 /s"), expected("fsync", 123.5, Unit::PerSecond));
        assert_eq!(
            read("own sequential-read 5e9 B/s"),
            expected("sequential-read", 5e9, Unit::BytesPerSecond)
        );
        for other in ["= own fsync", "own pgbench 0 /s", "own fsync 1 s", "fio: no such file"] {
            assert_eq!(read(other), None, "{other}");
        }
    }
}
