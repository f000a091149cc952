//! Figure 1: bottlenecks of a network file system, removed one by one.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::test_host::{Mover, Serves, TestHost, WRITTEN};
use super::{BIODS, OURS, PAPER};
use crate::drive::{Direction, Job, Kind};
use crate::error::{Doing, Result};
use crate::measure::{Contest, Placement, Work};
use crate::nfs::Link;
use crate::report::{Figure, Report, Unit};

const ROUNDS: usize = 10;
const FILE_BYTES: usize = 8 << 20;
const PIECE_BYTES: usize = 32 << 10;
const BIODS_LIMIT: u32 = 8;
const LOCAL: &str = "local";
const TCP: &str = "bare TCP";

/// Rungs: names and remaining bottlenecks.
const RUNGS: [(&str, Link, Serves, Direction); 6] = [
    ("stable writes, disk, 1 Gbit/s", Link::Gigabit, Serves::Disk, Direction::WriteStable),
    ("unstable writes, disk, 1 Gbit/s", Link::Gigabit, Serves::Disk, Direction::Write),
    ("unstable writes, disk, 10 Gbit/s", Link::TenGigabit, Serves::Disk, Direction::Write),
    ("memory, 10 Gbit/s", Link::TenGigabit, Serves::Memory, Direction::Write),
    ("nothing kept, 10 Gbit/s", Link::TenGigabit, Serves::Nothing, Direction::Write),
    ("nothing kept, loopback", Link::Loopback, Serves::Nothing, Direction::Write),
];

/// Values of the paper's bars in Mb/s, from the text and Table 2.
const PAPERS: [(&str, &str, f64); 4] = [
    ("unstable writes, disk, 640 Mbit/s", "SunOS's client", 20.0),
    ("nothing kept, 640 Mbit/s", "SunOS's client", 45.3),
    ("nothing kept, 640 Mbit/s", "TCP", 88.0),
    ("local", "RAM disk", 84.5),
];

pub(super) fn run(host: &TestHost<'_>) -> Report {
    let title = "Figure 1 of Faber's paper: the ladder of bottlenecks, writing a file";
    let mut report = host.report("atomic-figure-1", title);
    report.condition_of(&host.contest(ROUNDS));
    for (row, link, serves, direction) in RUNGS {
        if let Err(error) = measure(host, row, (link, serves), direction, &mut report) {
            report.absent(format!("{row}: {error}"));
        }
    }
    local(host, &mut report);
    for (row, whose, megabits) in PAPERS {
        let rate = megabits * 1e6 / 8.0;
        let column = format!("{PAPER}: {whose}");
        report.figures.push(Figure::single(row, "", &column, Unit::BytesPerSecond, rate));
    }
    report.condition(format!(
        "a file of {} MiB overwritten in requests of {} KiB, timed until it is stable. Stable writes: each request is on stable storage before it \
         is answered, which only our client is asked for; otherwise one COMMIT at the end. `{OURS}`: adaptive limit; `{BIODS}`: {BIODS_LIMIT} threads. \
         `{LOCAL}`: written and synced without a network. Disk: that of the machine, a virtual one",
        FILE_BYTES >> 20,
        PIECE_BYTES >> 10
    ));
    report.condition("the paper's first bars are 10 Mbit/s Ethernet, without numbers in its text");
    report
}

fn measure(
    host: &TestHost<'_>,
    row: &str,
    (link, serves): (Link, Serves),
    direction: Direction,
    report: &mut Report,
) -> Result<()> {
    let server = host.server(link, serves)?;
    let bare = host.server(link, Serves::Bare)?;
    let file_bytes = host.plan.scaled(FILE_BYTES, 256 << 10);
    let job = |limit| Job { direction, limit, piece_bytes: PIECE_BYTES, file_bytes };
    let served = (&server, serves);
    let contestants = [
        (OURS, Kind::Tombolo, served, 0),
        (BIODS, Kind::Biods, served, BIODS_LIMIT),
        (TCP, Kind::Tcp, (&bare, Serves::Bare), 0),
    ];
    let mut entrants = Vec::new();
    for (column, kind, (server, serves), limit) in contestants {
        // A client with a thread per request supports unstable writes only.
        if direction == Direction::WriteStable && column != OURS {
            continue;
        }
        let (name, count_max) = ((column, ""), if serves == Serves::Disk { 1 } else { 4 });
        let mover = Mover { name, kind, server, serves, job: job(limit), count_max };
        host.enter(&mut entrants, report, row, mover);
    }
    report.contest(row, &timed(host), entrants);
    Ok(())
}

fn timed(host: &TestHost<'_>) -> Contest {
    Contest { costs: false, ..host.contest(ROUNDS) }
}

/// Measures the file systems without a network.
fn local(host: &TestHost<'_>, report: &mut Report) {
    for (row, serves) in [("local, disk", Serves::Disk), ("local, memory", Serves::Memory)] {
        let file_bytes = host.plan.scaled(FILE_BYTES, 256 << 10);
        let job = Job { direction: Direction::Write, limit: 0, piece_bytes: PIECE_BYTES, file_bytes };
        let folder = host.lay_out(serves, &job).map(|()| host.folder(serves));
        let work = folder.and_then(|folder| local_writes(&folder, job));
        let mut entrants = Vec::new();
        report.enter(&mut entrants, row, (LOCAL, ""), work, &[], None::<Placement>);
        report.contest(row, &timed(host), entrants);
    }
}

/// Writes the file locally.
fn local_writes(folder: &Path, job: Job) -> Result<Work<'static>> {
    let path = folder.join(WRITTEN);
    let file = OpenOptions::new().write(true).open(&path).doing_to("open", &path)?;
    let piece = vec![b'l'; job.piece_bytes];
    let once = move || {
        for (at, bytes) in job.each() {
            file.write_all_at(&piece[..bytes], at as u64).doing_to("write", &path)?;
        }
        file.sync_all().doing_to("sync", &path)
    };
    Ok(Work::repeat(1, once).bytes(job.file_bytes as u64).count_max(4))
}
