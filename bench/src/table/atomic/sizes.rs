//! Figures 2, 4 and 5: throughput over file size, written and read, with data dropped, stored in memory, and
//! over bare TCP.

use super::test_host::{Mover, Serves, TestHost};
use super::{BIODS, OURS};
use crate::drive::{Direction, Job, Kind};
use crate::error::Result;
use crate::measure::Contest;
use crate::nfs::Link;
use crate::peer::Nfs;
use crate::report::Report;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const SIZES: [usize; 8] = [4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB];
const QUICK_SIZES: [usize; 2] = [4 * KIB, MIB];
/// Maximum size over the slowest link, where longer files take time without further insight.
const SLOW_MAX: usize = 16 * MIB;
const ROUNDS: usize = 10;
/// Size of a request, at most the file's.
const PIECE_BYTES: usize = 256 * KIB;
/// Limit of clients with a thread per request; ours finds its own.
const BIODS_LIMIT: u32 = 8;

const OURS_NULL: &str = "tombolo, nothing kept";
const BIODS_NULL: &str = "thread per request, nothing kept";
const TCP: &str = "bare TCP";
const TCP_FILE: &str = "TCP to a file";

/// Targets relative to bare TCP, from 1 MiB on and below.
const LARGE_TARGET: f64 = 0.9;
const SMALL_TARGET: f64 = 0.7;

/// Contents of a figure of the paper: our columns, and the paper's statement.
struct Shown {
    name: &'static str,
    title: &'static str,
    columns: &'static [&'static str],
    paper: &'static str,
}

const SHOWN: [Shown; 3] = [
    Shown {
        name: "atomic-figure-2",
        title: "Figure 2 of Faber's paper: gain of the client's improvements with data dropped",
        columns: &[OURS_NULL, BIODS_NULL],
        paper: "the paper's Figure 2: 56.9 Mb/s (7.1 MB/s) against 45.3 Mb/s (5.7 MB/s) for 32 MB, and more at all sizes",
    },
    Shown {
        name: "atomic-figure-4",
        title: "Figure 4 of Faber's paper: the same with data stored",
        columns: &[OURS, BIODS, OURS_NULL],
        paper: "the paper's Figure 4: 1.18 × the throughput of SunOS's client with a RAM disk at the server, and more at all sizes",
    },
    Shown {
        name: "atomic-figure-5",
        title: "Figure 5 of Faber's paper: compared with bare TCP",
        columns: &[TCP, TCP_FILE, OURS, BIODS, OURS_NULL],
        paper: "the paper's Figure 5: TCP between processes nearly 90 Mb/s (11 MB/s), TCP to a file and the improved client both about \
                45 Mb/s (5.6 MB/s) for large files; for small ones the client lags, because it begins to send late",
    },
];

pub(super) fn run(host: &TestHost<'_>) -> Vec<Report> {
    let mut all = host.report("atomic-sizes", "All sizes");
    all.condition_of(&host.contest(ROUNDS));
    all.condition(format!(
        "requests of {} KiB, or the file where that is shorter; the file is open already, and what is timed ends when the server has said that \
         it is stable (`write`: COMMIT) or the last byte is in the program's memory (`read`). `{OURS}`: adaptive limit, as it comes. `{BIODS}`: \
         {BIODS_LIMIT} threads",
        PIECE_BYTES / KIB
    ));
    all.condition(format!(
        "`{TCP}`: an established connection; the size, the bytes, and one byte back that says that all have come, which are then dropped (`write`); \
         or the size, and so many bytes back that come from nowhere (`read`). `{TCP_FILE}`: written to a file in memory as they come. `nothing kept`: \
         an NFS server that drops what is written and has only zeros to be read"
    ));
    for link in Link::ALL {
        for direction in [Direction::Write, Direction::Read] {
            let servers = match Servers::start(host, link) {
                Ok(servers) => servers,
                Err(error) => {
                    all.absent(format!("{}: {error}", link.label()));
                    continue;
                }
            };
            for file_bytes in sizes(host, link) {
                measure(host, &servers, direction, file_bytes, &mut all);
            }
        }
    }
    SHOWN.iter().map(|shown| part(&all, shown)).collect()
}

fn sizes(host: &TestHost<'_>, link: Link) -> Vec<usize> {
    let all: &[usize] = if host.plan.quick { &QUICK_SIZES } else { &SIZES };
    all.iter().copied().filter(|&size| link != Link::Gigabit || size <= SLOW_MAX).collect()
}

/// Servers at the end of a link.
struct Servers {
    link: Link,
    memory: Nfs,
    nothing: Nfs,
    bare: Nfs,
}

impl Servers {
    fn start(host: &TestHost<'_>, link: Link) -> Result<Self> {
        let server = |serves| host.server(link, serves);
        let (memory, nothing, bare) =
            (server(Serves::Memory)?, server(Serves::Nothing)?, server(Serves::Bare)?);
        Ok(Self { link, memory, nothing, bare })
    }
}

fn measure(
    host: &TestHost<'_>,
    servers: &Servers,
    direction: Direction,
    file_bytes: usize,
    report: &mut Report,
) {
    let row = row(direction, servers.link);
    let variant = label(file_bytes);
    let job = |limit| Job { direction, limit, piece_bytes: PIECE_BYTES.min(file_bytes), file_bytes };
    let (kept, dropped, bare) = (
        (&servers.memory, Serves::Memory),
        (&servers.nothing, Serves::Nothing),
        (&servers.bare, Serves::Bare),
    );
    let contestants = [
        (OURS, Kind::Tombolo, kept, 0),
        (OURS_NULL, Kind::Tombolo, dropped, 0),
        (BIODS, Kind::Biods, kept, BIODS_LIMIT),
        (BIODS_NULL, Kind::Biods, dropped, BIODS_LIMIT),
        (TCP, Kind::Tcp, bare, 0),
        (TCP_FILE, Kind::TcpToFile, bare, 0),
    ];
    let mut entrants = Vec::new();
    // Reading over bare TCP returns data from memory.
    for (column, kind, (server, serves), limit) in
        contestants.into_iter().filter(|(column, ..)| direction != Direction::Read || *column != TCP_FILE)
    {
        let (name, count_max) = ((column, variant.as_str()), count_max(file_bytes));
        host.enter(
            &mut entrants,
            report,
            &row,
            Mover { name, kind, server, serves, job: job(limit), count_max },
        );
    }
    // Costs are in the tables of fixed files.
    report.contest(&row, &Contest { costs: false, ..host.contest(ROUNDS) }, entrants);
}

/// Returns the maximum count of a turn; few long files suffice.
fn count_max(file_bytes: usize) -> u64 {
    (64 * MIB / file_bytes).clamp(1, 10_000) as u64
}

fn row(direction: Direction, link: Link) -> String {
    let direction = if direction == Direction::Read { "read" } else { "write" };
    format!("{direction}, {}", link.label())
}

fn label(file_bytes: usize) -> String {
    if file_bytes >= MIB { format!("{} MiB", file_bytes / MIB) } else { format!("{} KiB", file_bytes / KIB) }
}

/// Returns the part of all results that one of the paper's figures shows.
fn part(all: &Report, shown: &Shown) -> Report {
    let mut report = Report { name: shown.name.to_owned(), title: shown.title.to_owned(), ..all.clone() };
    report.condition(shown.paper);
    report.figures.retain(|figure| shown.columns.contains(&figure.column.as_str()));
    let cells: Vec<(String, String)> = (report.figures.iter())
        .filter(|figure| figure.column == shown.columns[0])
        .map(|figure| (figure.row.clone(), figure.variant.clone()))
        .collect();
    for (row, variant) in cells {
        let target = if variant.ends_with("MiB") { LARGE_TARGET } else { SMALL_TARGET };
        let pairs = match shown.name {
            "atomic-figure-2" => vec![(OURS_NULL, BIODS_NULL, None)],
            "atomic-figure-4" => vec![(OURS, BIODS, None)],
            _ => vec![
                (OURS_NULL, TCP, Some(target)),
                (OURS, TCP_FILE, Some(target)),
                // On the loopback the processor is the bottleneck, and bare TCP stores nothing.
                (OURS, TCP, (!row.ends_with(Link::Loopback.label())).then_some(target)),
            ],
        };
        for (ours, other, target) in pairs {
            report.compare_cells(&row, (ours, &variant), (other, &variant), target);
        }
    }
    report
}
