//! `guest-disk`: fio and PostgreSQL on the disks of a User Mode Linux guest: ours and QEMU's storage daemon's
//! by virtio-blk, and the guest's own driver for images.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use tempfile::TempDir;

use super::guest::make_disk;
use super::{Plan, folder};
use crate::error::{Doing, Error, Result};
use crate::measure::{CostMeter, Placement, go_on};
use crate::peer::{AtSocket, in_checkout, virtio_blk};
use crate::report::{Figure, Report, Unit};

/// Phases of the guest's job, with the target ratio to the peer.
const ROWS: [(&str, f64); 8] = [
    ("random-read", 1.2),
    ("random-write", 1.2),
    ("random-read-32", 1.2),
    ("random-write-32", 1.2),
    ("sequential-read", 1.2),
    ("sequential-write", 1.2),
    ("fsync", 1.2),
    ("pgbench", 1.0),
];
/// Names of the disks in the guest.
const OURS: &str = "tombolo";
const PEER: &str = "qemu-storage-daemon";
const OWN: &str = "own";
/// Row of the servers' processor shares.
const SHARE: &str = "server's processor";
/// Rounds of a full run.
const ROUNDS: usize = 9;
/// Length of a phase on each disk, in seconds; pgbench runs twice as long.
const PHASE_SECS: usize = 2;

/// Result of a phase: operations or bytes per second, and the server's processor share.
struct Phase {
    disk: String,
    row: String,
    unit: Unit,
    rate: f64,
    share: f64,
}

/// Measures the table. `disk` is a directory on a disk.
pub fn run(plan: &Plan, disk: &Path) -> Result<Report> {
    let mut report = plan.report("guest-disk", "fio and pgbench on a UML guest's disks");
    let rounds = if plan.rounds_given { plan.rounds } else { plan.scaled(ROUNDS, 1) };
    let seconds = plan.scaled(PHASE_SECS, 1);
    let images = Images::make(disk)?;
    Placement::leave()?;
    let mut servers = Vec::new();
    for (name, start) in [(OURS, virtio_blk::tombolo as Start), (PEER, virtio_blk::storage_daemon)] {
        match start(&images.image(name)?, &images.place.path().join(format!("{name}.sock")), false) {
            Ok(server) => servers.push((name, server)),
            Err(error) => report.absent(error.to_string()),
        }
    }
    let mut found: BTreeMap<(String, String), Vec<Phase>> = BTreeMap::new();
    for phase in images.measure(rounds, seconds, &servers)? {
        found.entry((phase.row.clone(), phase.disk.clone())).or_default().push(phase);
    }
    for ((row, disk), phases) in &found {
        let rates = phases.iter().map(|phase| phase.rate).collect();
        report.figures.extend(Figure::of_rounds(row, "", disk, phases[0].unit, rates));
        if disk != OWN {
            let row = format!("{row}, {SHARE}");
            let shares = phases.iter().map(|phase| phase.share * 100.0).collect();
            report.figures.extend(Figure::of_rounds(&row, "", disk, Unit::Percent, shares));
        }
    }
    for (row, target) in ROWS {
        report.compare_cells(row, (OURS, ""), (PEER, ""), Some(target));
        report.compare_cells(row, (OURS, ""), (OWN, ""), None);
    }
    report.condition(format!(
        "{rounds} rounds in one guest (1 GB) that has all disks, each an image of 1 GiB of its own in {}, through the host's page cache; in each round and \
         phase the disks take turns of {seconds} s in rotating order; nothing is pinned; own: the guest's own driver for images (ubd)",
        disk.display()
    ));
    report.condition(
        "fio 4 KiB at random in 256 MiB, 1 and 32 under way (libaio), and 1 MiB in order, past the guest's page cache; fsync: 4 KiB at random through it, \
         with an fsync after each; pgbench: TPC-B, scale 5, four clients, 16 MiB of shared buffers",
    );
    Ok(report)
}

type Start = fn(&Path, &Path, bool) -> Result<AtSocket>;

/// Images of the disks, and the scripts that fill and use them.
struct Images {
    run: PathBuf,
    workload: PathBuf,
    place: TempDir,
}

impl Images {
    /// Creates the first image with a guest.
    fn make(disk: &Path) -> Result<Self> {
        let guests = in_checkout(Path::new("tests/guests"))?;
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
        let copied = Command::new("cp").arg("--sparse=always").arg(self.own()).arg(&image).status();
        match copied.doing_to("copy to", &image)?.success() {
            true => Ok(image),
            false => Err(Error::Absent(format!("no space for {}", image.display()))),
        }
    }

    fn measure(&self, rounds: usize, seconds: usize, servers: &[(&str, AtSocket)]) -> Result<Vec<Phase>> {
        let mut words = vec!["run".to_owned(), rounds.to_string(), seconds.to_string()];
        // The guest numbers the disks in the order of the options.
        words.extend(servers.iter().zip('a'..).map(|((name, _), letter)| format!("{name}=/dev/vd{letter}")));
        let options: Vec<_> = servers
            .iter()
            .flat_map(|(_, server)| [OsStr::new("--blk"), server.socket().as_os_str()])
            .collect();
        self.guest(&options, &words, servers)
    }

    /// Runs a part of the job in a fresh guest. The server's processor time is measured between lines of the
    /// guest's output.
    fn guest(
        &self,
        options: &[&OsStr],
        words: &[String],
        servers: &[(&str, AtSocket)],
    ) -> Result<Vec<Phase>> {
        go_on()?;
        let mut command = Command::new(&self.run);
        command.args(["uml", "--mem", "1G", "--timeout", "7200", "--disk"]).arg(self.own()).args(options);
        command.arg(&self.workload).args(words).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut guest = command.spawn().doing_to("start", &self.run)?;
        let meters: Vec<_> =
            servers.iter().map(|(name, server)| (*name, CostMeter::new(&[server.server()], None))).collect();
        let costs = || -> Vec<f64> { meters.iter().map(|(_, meter)| meter.now().server_cpu_ns).collect() };
        let (mut phases, mut other) = (Vec::new(), String::new());
        let (mut begun, mut before) = (Instant::now(), costs());
        for line in guest.stdout.take().into_iter().flat_map(|said| BufReader::new(said).lines()) {
            let line = line.doing_to("read what is said by", &self.run)?;
            let (took_ns, after) = (begun.elapsed().as_nanos() as f64, costs());
            if let Some(mut phase) = phase(&line) {
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
fn phase(line: &str) -> Option<Phase> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let &[disk, row, number, unit] = words.as_slice() else { return None };
    let unit = match unit {
        "/s" => Unit::PerSecond,
        "B/s" => Unit::BytesPerSecond,
        _ => return None,
    };
    let rate = number.parse().ok().filter(|rate| *rate > 0.0)?;
    Some(Phase { disk: disk.to_owned(), row: row.to_owned(), unit, rate, share: 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_output_is_parsed_into_phases() {
        let read = |line| phase(line).map(|phase| (phase.disk, phase.row, phase.rate, phase.unit));
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
