//! `guest-disk`: fio and PostgreSQL on the disks of a User Mode Linux guest: ours and QEMU's storage daemon's
//! by virtio-blk, and the guest's own driver for images.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use tempfile::TempDir;

use super::guest::make_disk;
use super::{Plan, folder};
use crate::error::{Doing, Error, Result};
use crate::files::copy_with_holes;
use crate::measure::{CostMeter, Placement, go_on};
use crate::peer::{AtSocket, Program, in_checkout};
use crate::report::{Report, Unit};
use crate::sheet::{Sheet, sheet};

/// Name of the guest's own disk; those of servers are the programs'.
const OWN: &str = "own";
/// Result of a phase: operations or bytes per second, and the server's processor share.
struct Phase {
    disk: String,
    row: String,
    unit: Unit,
    rate: f64,
    share: f64,
}

pub fn run(plan: &Plan) -> Result<Report> {
    let sheet: Sheet<'_> = sheet!(plan, "guest-disk")?;
    let mut report = sheet.report();
    let (rounds, seconds) = (sheet.rounds(), sheet.number("seconds"));
    let images = Images::make(&plan.disk)?;
    Placement::leave()?;
    let mut servers = Vec::new();
    for program in [Program::Tombolo, Program::StorageDaemon] {
        let name = program.name();
        let socket = images.place.path().join(format!("{name}.sock"));
        match AtSocket::virtio_blk(program, &images.image(name)?, &socket, false) {
            Ok(server) => servers.push((name, server)),
            Err(error) => report.absent(error.to_string()),
        }
    }
    let mut phases = images.measure(rounds, seconds, &servers)?;
    phases.sort_by(|one, other| (&one.row, &one.disk).cmp(&(&other.row, &other.disk)));
    for Phase { disk, row, unit, rate, share } in phases {
        report.add(&row, "", &disk, unit, rate);
        if disk != OWN {
            report.add(&format!("{row}, server's processor"), "", &disk, Unit::Percent, share * 100.0);
        }
    }
    Ok(sheet.finish(report))
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
        copy_with_holes(&self.own(), &image).map_err(|error| Error::Absent(error.to_string()))?;
        Ok(image)
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
