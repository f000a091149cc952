//! `guest`: a developer's job in a User Mode Linux guest, on our virtio-fs, on virtiofsd's, and on the guest's own disk
//! and memory.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::Plan;
use crate::error::{Doing, Error, Result};
use crate::measure::go_on;
use crate::peer::{Program, VirtioFs, in_checkout};
use crate::report::{Figure, Report, Unit};

/// No phase may be slower than with the peer. `bench/peers/guest-job` has the geometric mean.
const TARGET: f64 = 1.0;

/// As the peer comes.
const OPTIONS: [&str; 2] = ["--xattrs", "off"];

/// Each of ours is compared with the peer's equal promise, and with what the peer does by default.
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
/// Rounds of a run that is to be believed: each boots a guest for each column.
const ROUNDS: usize = 3;

/// Measures the job on one C project: `lua`, `zstd` or `httpd`; in these columns only, if any are named.
pub fn run(plan: &Plan, source: &str, only: &[String]) -> Result<Report> {
    let mut report = plan.report(
        &format!("guest-{source}"),
        &format!(
            "A job in a UML guest: {source}'s source unpacked, built, searched, listed, copied, deleted"
        ),
    );
    let job = Job::new(plan, source)?;
    let rounds = if plan.rounds_given { plan.rounds } else { plan.scaled(ROUNDS, 1) };
    let mut columns: Vec<&str> = COLUMNS.to_vec();
    columns.retain(|column| only.is_empty() || only.iter().any(|wanted| wanted == column));
    if plan.quick {
        columns.truncate(1);
    }
    // Row, column: seconds per round.
    let mut times: BTreeMap<(String, &str), Vec<f64>> = BTreeMap::new();
    let mut phases: Vec<String> = Vec::new();
    for round in 0..rounds {
        let first = round % columns.len().max(1);
        columns.rotate_left(first);
        columns.retain(|&column| match job.run(column) {
            Ok(took) => {
                progress(round, rounds, column);
                for (phase, secs) in took {
                    if !phases.contains(&phase) {
                        phases.push(phase.clone());
                    }
                    times.entry((phase, column)).or_default().push(secs);
                }
                true
            }
            Err(error) => {
                report.absent(format!("{column}: {error}"));
                false
            }
        });
    }
    for phase in &phases {
        for column in COLUMNS {
            let Some(rounds) = times.get(&(phase.clone(), column)) else { continue };
            report.figures.extend(Figure::of_rounds(phase, "", column, Unit::Seconds, rounds.clone()));
        }
        compare(&mut report, phase);
    }
    report.condition(format!(
        "{rounds} rounds, in each of which every contestant has a fresh guest (1 GB) and an empty directory; times are the \
         guest's own, to 10 ms"
    ));
    report.condition("no extended attributes on either side");
    report.condition("the shared directories, the guest's disk (ext4, cache=unsafe) and the tarball lie in the host's memory");
    Ok(report)
}

/// A round takes minutes: says on standard error how far it is.
fn progress(round: usize, rounds: usize, column: &str) {
    // A closed standard error is no reason to stop.
    let _unread = writeln!(std::io::stderr(), "round {} of {rounds}: {column}", round + 1);
}

fn compare(report: &mut Report, phase: &str) {
    for (ours, other) in PAIRS {
        report.compare_cells(phase, (ours, ""), (other, ""), Some(TARGET));
    }
    report.compare_cells(phase, (PAIRS[0].0, ""), (OWN_DISK, ""), None);
}

/// What every run of the job needs.
struct Job {
    run: PathBuf,
    workload: PathBuf,
    source: PathBuf,
    within: PathBuf,
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
        Ok(Self { run, workload, source, within: plan.within.clone() })
    }

    /// One run in a fresh guest: phases and seconds.
    fn run(&self, column: &str) -> Result<Vec<(String, f64)>> {
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
                let server = start(column, &shared, &folder.path().join("socket"))?;
                command.arg("--virtiofs").arg(server.socket());
                (Some(server), "/mnt/tombolo")
            }
        };
        command.arg(&self.workload).arg(at).arg(&self.source);
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
}

fn start(column: &str, shared: &Path, socket: &Path) -> Result<VirtioFs> {
    match column.split_once(' ') {
        Some((program, mode)) if program == Program::Virtiofsd.name() => {
            VirtioFs::virtiofsd(shared, socket, mode)
        }
        Some((_, mode)) => VirtioFs::tombolo(shared, socket, mode, &OPTIONS),
        None => VirtioFs::tombolo(shared, socket, "auto", &OPTIONS),
    }
}

fn make_disk(path: &Path) -> Result<()> {
    let file = fs::File::create_new(path).doing_to("make", path)?;
    file.set_len(1 << 30).doing_to("size", path)?;
    let made = Command::new("mkfs.ext4").arg("-q").arg(path).stdin(Stdio::null()).status();
    match made {
        Ok(status) if status.success() => Ok(()),
        _ => Err(Error::Absent("mkfs.ext4 is not here: apt-get install e2fsprogs".to_owned())),
    }
}

/// Lines like `unpack 1.23 s`; a phase that comes twice counts once.
fn phases(text: &str) -> Vec<(String, f64)> {
    let mut found: Vec<(String, f64)> = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (Some(name), Some(secs), Some("s")) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let Ok(secs) = secs.parse() else { continue };
        if found.iter().all(|(other, _)| other != name) {
            found.push((name.to_owned(), secs));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_read_from_what_the_job_prints() {
        let text = "unpack    0.17 s\nbuild     left out: no compiler here\nchecksum  0.05 s\nchecksum  9.99 s\n= 3 files\n";
        assert_eq!(phases(text), [("unpack".to_owned(), 0.17), ("checksum".to_owned(), 0.05)]);
    }
}
