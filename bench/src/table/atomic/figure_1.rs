//! Figure 1: what holds a network file system back, taken away one after the other.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::test_host::{Serves, TestHost, WRITTEN, enter};
use super::{BIODS, OURS, PAPER};
use crate::drive::{Direction, Job, Kind};
use crate::error::{Doing, Result};
use crate::measure::{Clock, Entrant, Work};
use crate::nfs::Link;
use crate::report::{Figure, Report, Unit};

const ROUNDS: usize = 10;
const FILE_BYTES: usize = 8 << 20;
const PIECE_BYTES: usize = 32 << 10;
const BIODS_LIMIT: u32 = 8;
const LOCAL: &str = "local";
const TCP: &str = "bare TCP";

/// A rung: what it is called, and what is still in the direction.
struct Rung {
    what: &'static str,
    link: Link,
    serves: Serves,
    direction: Direction,
}

const RUNGS: [Rung; 6] = [
    Rung {
        what: "stable writes, disk, 1 Gbit/s",
        link: Link::Gigabit,
        serves: Serves::Disk,
        direction: Direction::WriteStable,
    },
    Rung {
        what: "unstable writes, disk, 1 Gbit/s",
        link: Link::Gigabit,
        serves: Serves::Disk,
        direction: Direction::Write,
    },
    Rung {
        what: "unstable writes, disk, 10 Gbit/s",
        link: Link::TenGigabit,
        serves: Serves::Disk,
        direction: Direction::Write,
    },
    Rung {
        what: "memory, 10 Gbit/s",
        link: Link::TenGigabit,
        serves: Serves::Memory,
        direction: Direction::Write,
    },
    Rung {
        what: "nothing kept, 10 Gbit/s",
        link: Link::TenGigabit,
        serves: Serves::Nothing,
        direction: Direction::Write,
    },
    Rung {
        what: "nothing kept, loopback",
        link: Link::Loopback,
        serves: Serves::Nothing,
        direction: Direction::Write,
    },
];

/// Mb/s: what the text and Table 2 say of the paper's bars.
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
    for rung in &RUNGS {
        if let Err(error) = measure(host, rung, &mut report) {
            report.absent(format!("{}: {error}", rung.what));
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

fn measure(host: &TestHost<'_>, rung: &Rung, report: &mut Report) -> Result<()> {
    let server = host.server(rung.link, rung.serves)?;
    let bare = host.server(rung.link, Serves::Bare)?;
    let file_bytes = host.plan.scaled(FILE_BYTES, 256 << 10);
    let job = |limit| Job { direction: rung.direction, limit, piece_bytes: PIECE_BYTES, file_bytes };
    let served = (&server, rung.serves);
    let contestants = [
        (OURS, Kind::Tombolo, served, 0),
        (BIODS, Kind::Biods, served, BIODS_LIMIT),
        (TCP, Kind::Tcp, (&bare, Serves::Bare), 0),
    ];
    let mut entrants = Vec::new();
    for (column, kind, server, limit) in contestants {
        // A client with a thread for each request writes unstable only.
        if rung.direction == Direction::WriteStable && column != OURS {
            continue;
        }
        let count_max = if rung.serves == Serves::Disk { 1 } else { 4 };
        let entrant = host.mover((column, ""), kind, server, job(limit), count_max);
        enter(&mut entrants, report, rung.what, (column, ""), entrant);
    }
    take(host, report, rung.what, entrants);
    Ok(())
}

fn take(host: &TestHost<'_>, report: &mut Report, row: &str, entrants: Vec<Entrant<'_>>) {
    let (series, dropped) = host.contest(ROUNDS).run(entrants);
    let known = report.figures.len();
    report.take(row, &series, &dropped);
    report.figures.iter_mut().skip(known).for_each(|figure| figure.cost = None);
}

/// What the file systems do without a network.
fn local(host: &TestHost<'_>, report: &mut Report) {
    for (row, serves) in [("local, disk", Serves::Disk), ("local, memory", Serves::Memory)] {
        let file_bytes = host.plan.scaled(FILE_BYTES, 256 << 10);
        let job = Job { direction: Direction::Write, limit: 0, piece_bytes: PIECE_BYTES, file_bytes };
        let folder = host.lay_out(serves, &job).map(|()| host.folder(serves));
        let local = folder.and_then(|folder| Local::new(&folder, job));
        let entrant = local.map(|local| Entrant {
            name: (LOCAL.to_owned(), String::new()),
            work: Box::new(local),
            servers: Vec::new(),
            place: None,
        });
        let mut entrants = Vec::new();
        enter(&mut entrants, report, row, (LOCAL, ""), entrant);
        take(host, report, row, entrants);
    }
}

/// The file written here.
struct Local {
    path: PathBuf,
    file: File,
    piece: Vec<u8>,
    job: Job,
}

impl Local {
    fn new(folder: &Path, job: Job) -> Result<Self> {
        let path = folder.join(WRITTEN);
        let file = OpenOptions::new().write(true).open(&path).doing_to("open", &path)?;
        Ok(Self { path, file, piece: vec![b'l'; job.piece_bytes], job })
    }
}

impl Work for Local {
    fn run(&mut self, count: u64, clock: &mut Clock) -> Result<()> {
        for _ in 0..count {
            clock.start();
            for (at, bytes) in self.job.each() {
                self.file.write_all_at(&self.piece[..bytes], at as u64).doing_to("write", &self.path)?;
            }
            self.file.sync_all().doing_to("sync", &self.path)?;
            clock.lap();
        }
        Ok(())
    }

    fn bytes(&self) -> Option<u64> {
        Some(self.job.file_bytes as u64)
    }

    fn count_max(&self) -> u64 {
        4
    }
}
