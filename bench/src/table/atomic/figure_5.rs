//! Figure 5: throughput over the size of a file, written and read, beside bare TCP.

use super::OURS;
use super::test_host::{Serves, TestHost, enter};
use crate::drive::{Direction, Job, Kind};
use crate::error::Result;
use crate::nfs::Link;
use crate::report::Report;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const SIZES: [(&str, usize); 3] = [("4 KiB", 4 * KIB), ("1 MiB", MIB), ("64 MiB", 64 * MIB)];
const ROUNDS: usize = 10;
/// Bytes of a request, but for shorter files.
const PIECE_BYTES: usize = 256 * KIB;
const TCP: &str = "bare TCP";
/// Of bare TCP, from [`MIB`] on and below.
const LARGE_TARGET: f64 = 0.9;
const SMALL_TARGET: f64 = 0.7;

pub(super) fn run(host: &TestHost<'_>) -> Report {
    let mut report = host.report("atomic-figure-5", "Figure 5 of Faber's paper: beside bare TCP");
    report.condition_of(&host.contest(ROUNDS));
    for (row, direction) in [("write, loopback", Direction::Write), ("read, loopback", Direction::Read)] {
        for (variant, file_bytes) in SIZES {
            if let Err(error) = measure(host, (row, direction), (variant, file_bytes), &mut report) {
                report.absent(format!("{row}, {variant}: {error}"));
            }
        }
    }
    report.condition(format!(
        "requests of {} KiB, or the file where that is shorter; the file is open already, and what is timed ends when the server has said that \
         it is stable (`write`: COMMIT) or the last byte is in the program's memory (`read`). `{OURS}`: adaptive limit, against an NFS server that \
         drops what is written and has only zeros to be read. `{TCP}`: an established connection; the size, the bytes, and one byte back that says \
         that all have come (`write`); or the size, and so many bytes back that come from nowhere (`read`)",
        PIECE_BYTES / KIB
    ));
    report
}

fn measure(
    host: &TestHost<'_>,
    (row, direction): (&str, Direction),
    (variant, file_bytes): (&str, usize),
    report: &mut Report,
) -> Result<()> {
    let job = Job { direction, limit: 0, piece_bytes: PIECE_BYTES.min(file_bytes), file_bytes };
    // Long files tell enough one at a time.
    let count_max = (64 * MIB / file_bytes).clamp(1, 10_000) as u64;
    let mut entrants = Vec::new();
    let mut servers = Vec::new();
    for (column, kind, serves) in [(OURS, Kind::Tombolo, Serves::Nothing), (TCP, Kind::Tcp, Serves::Bare)] {
        let server = host.server(Link::Loopback, serves)?;
        let entrant = host.mover((column, variant), kind, (&server, serves), job, count_max);
        servers.push(server);
        enter(&mut entrants, report, row, (column, variant), entrant);
    }
    let (series, dropped) = host.contest(ROUNDS).run(entrants);
    report.take(row, &series, &dropped);
    let [ours, tcp] = [OURS, TCP].map(|column| report.figure(row, column, variant).cloned());
    report.compare(
        ours.as_ref(),
        tcp.as_ref(),
        Some(if file_bytes < MIB { SMALL_TARGET } else { LARGE_TARGET }),
    );
    Ok(())
}
