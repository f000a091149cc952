//! Comparison with libnfs's raw calls, with as many requests in flight.

use super::OURS;
use super::test_host::{Mover, Serves, TestHost, WRITTEN};
use crate::drive::{Direction, Job, Kind};
use crate::measure::Placement;
use crate::nfs::Link;
use crate::nfs::work::{Driver, moves_by_libnfs};
use crate::peer::Nfs;
use crate::report::{Figure, Report, Unit};

const LIBNFS: &str = "libnfs";
const ROUNDS: usize = 15;
const FILE_BYTES: usize = 32 << 20;
const LIMIT: u32 = 8;
const ROWS: [(&str, Direction, usize); 4] = [
    ("WRITE 32 KiB", Direction::Write, 32 << 10),
    ("WRITE 1 MiB", Direction::Write, 1 << 20),
    ("READ 32 KiB", Direction::Read, 32 << 10),
    ("READ 1 MiB", Direction::Read, 1 << 20),
];

const THROUGHPUT_TARGET: f64 = 1.3;
/// Context switches at most 0.6 times as many.
const SWITCHES_TARGET: f64 = 1.67;
/// Processor time per byte at most 0.7 times as much.
const CPU_TARGET: f64 = 1.43;

pub(super) fn run(host: &TestHost<'_>) -> Report {
    let mut report = host.report("atomic-libnfs", "Our NFS client compared with libnfs");
    report.condition_of(&host.contest(ROUNDS));
    match host.server(Link::Loopback, Serves::Memory) {
        Ok(server) => {
            for (row, direction, piece_bytes) in ROWS {
                measure(host, &server, (row, direction, piece_bytes), &mut report);
            }
        }
        Err(error) => report.absent(error.to_string()),
    }
    report.condition(format!(
        "files of {} MiB over loopback, to and from our server on a file system in memory, {LIMIT} requests in flight; a file is written with UNSTABLE \
         and one COMMIT. `{LIBNFS}`: 4.0, its raw calls (`bench/peers/libnfs-driver.c`), which neither look ahead nor keep anything; `{OURS}`: the \
         product through the waist. Both have the whole file in memory of their own: libnfs's program copies to there what it is given. Processor time and context switches are the clients'",
        FILE_BYTES >> 20
    ));
    report
}

fn measure(
    host: &TestHost<'_>,
    server: &Nfs,
    (row, direction, piece_bytes): (&str, Direction, usize),
    report: &mut Report,
) {
    let file_bytes = host.plan.scaled(FILE_BYTES, 4 << 20);
    let job = Job { direction, limit: LIMIT, piece_bytes, file_bytes };
    let mut entrants = Vec::new();
    let ours =
        Mover { name: (OURS, ""), kind: Kind::Tombolo, server, serves: Serves::Memory, job, count_max: 4 };
    host.enter(&mut entrants, report, row, ours);
    let file = if direction == Direction::Read { job.read_name() } else { WRITTEN.to_owned() };
    let libnfs = Driver::libnfs(server, &file).map(|driver| moves_by_libnfs(driver, job, 4));
    report.enter(&mut entrants, row, (LIBNFS, ""), libnfs, &[server.server()], Placement::TwoCores);
    let series = report.contest(row, &host.contest(ROUNDS), entrants);
    let switches = format!("{row}: context switches");
    let cpu = format!("{row}: processor time");
    for series in &series {
        let counted = Figure::per_megabyte(&switches, series, Unit::PerMegabyte, |cost| cost.caller_switches);
        let timed =
            Figure::per_megabyte(&cpu, series, Unit::NanosecondsPerMegabyte, |cost| cost.caller_cpu_ns);
        report.figures.extend(counted.into_iter().chain(timed));
    }
    for (row, target) in [(row, THROUGHPUT_TARGET), (&switches, SWITCHES_TARGET), (&cpu, CPU_TARGET)] {
        report.compare_cells(row, (OURS, ""), (LIBNFS, ""), Some(target));
    }
}
