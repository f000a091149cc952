//! Table 1: throughput and context switches over the in-flight limit; and the result of the adaptive limit.

use super::interval::median_at_least;
use super::test_host::{Mover, Serves, TestHost};
use super::{BIODS, OURS};
use crate::drive::{Direction, Job, Kind};
use crate::measure::{Contest, Spread};
use crate::nfs::Link;
use crate::peer::Nfs;
use crate::report::{Figure, Ratio, Report, Unit};

const LIMITS: [u32; 11] = [1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64];
const QUICK_LIMITS: [u32; 2] = [2, 8];
/// Variant without a fixed limit.
const ADAPTIVE: &str = "adaptive";
/// Number of runs of each contestant.
const ROUNDS: usize = 12;
const PIECE_BYTES: usize = 32 << 10;

/// Minimum multiple of the best throughput of a thread per request.
const THROUGHPUT_TARGET: f64 = 1.3;
/// Context switches at most 0.4 times as many.
const SWITCHES_TARGET: f64 = 2.5;
const ADAPTIVE_TARGET: f64 = 0.9;

/// Settings: name, link, server, file size, and maximum number of files per turn.
const SETTINGS: [(&str, Link, Serves, usize, u64); 4] = [
    ("loopback, nothing written", Link::Loopback, Serves::Nothing, 32 << 20, 4),
    ("loopback", Link::Loopback, Serves::Memory, 32 << 20, 4),
    ("10 Gbit/s", Link::TenGigabit, Serves::Memory, 32 << 20, 2),
    ("1 Gbit/s", Link::Gigabit, Serves::Memory, 8 << 20, 1),
];

pub(super) fn run(host: &TestHost<'_>) -> Report {
    let title = "Table 1 of Faber's paper: throughput and context switches over the in-flight limit";
    let mut report = host.report("atomic-table-1", title);
    report.condition_of(&host.contest(ROUNDS));
    for (what, link, serves, file_bytes, count_max) in SETTINGS {
        let measured = host
            .server(link, serves)
            .map(|server| measure(host, what, (&server, serves), (file_bytes, count_max), &mut report));
        if let Err(error) = measured {
            report.absent(format!("{what}: {error}"));
        }
    }
    report.condition(format!(
        "WRITE of {} KiB, UNSTABLE, and one COMMIT at the end; files of 32 MiB, over 1 Gbit/s of 8 MiB, overwritten again and again. `{BIODS}`: as \
         many threads as the limit says, each with a connection and one call outstanding; data is copied into the request, as biods do, and \
         encoded by our codec. `{OURS}`: the product, called as a library, with one connection",
        PIECE_BYTES >> 10
    ));
    report.condition(format!(
        "`{ADAPTIVE}` is compared with the fixed limit that had the best median of the same rounds; the lower bound is that of the median ratio \
         with 95 % confidence, by order statistics"
    ));
    report
}

fn measure(
    host: &TestHost<'_>,
    what: &str,
    (server, serves): (&Nfs, Serves),
    (file_bytes, count_max): (usize, u64),
    report: &mut Report,
) {
    let throughput = format!("{what}: throughput");
    let switches = format!("{what}: context switches");
    let limits: &[u32] = if host.plan.quick { &QUICK_LIMITS } else { &LIMITS };
    let file_bytes = host.plan.scaled(file_bytes, 2 << 20);
    let mut entrants = Vec::new();
    for (limit, kind, column) in contestants(limits) {
        let variant = variant(limit);
        let job = Job { direction: Direction::Write, limit, piece_bytes: PIECE_BYTES, file_bytes };
        let mover = Mover { name: (column, &variant), kind, server, serves, job, count_max };
        host.enter(&mut entrants, report, &throughput, mover);
    }
    // Of the costs only the switches are shown, per megabyte.
    let contest = Contest { costs: false, ..host.contest(ROUNDS) };
    let series = report.contest(&throughput, &contest, entrants);
    let count =
        |series| Figure::per_megabyte(&switches, series, Unit::PerMegabyte, |cost| cost.caller_switches);
    report.figures.extend(series.iter().filter_map(count));
    compare(report, &throughput, &switches);
    adaptive(report, &throughput);
}

fn contestants(limits: &[u32]) -> Vec<(u32, Kind, &'static str)> {
    let biods = limits.iter().map(|&limit| (limit, Kind::Biods, BIODS));
    biods.chain([0].iter().chain(limits).map(|&limit| (limit, Kind::Tombolo, OURS))).collect()
}

fn variant(limit: u32) -> String {
    if limit == 0 { ADAPTIVE.to_owned() } else { format!("limit {limit}") }
}

/// Compares the best of both, and the context switches of these.
fn compare(report: &mut Report, throughput: &str, switches: &str) {
    let (ours, theirs) = (report.best(throughput, OURS).cloned(), report.best(throughput, BIODS).cloned());
    report.compare(ours.as_ref(), theirs.as_ref(), Some(THROUGHPUT_TARGET));
    let (Some(ours), Some(theirs)) = (ours, theirs) else { return };
    let (ours, theirs) = ((OURS, ours.variant.as_str()), (BIODS, theirs.variant.as_str()));
    report.compare_cells(switches, ours, theirs, Some(SWITCHES_TARGET));
}

/// Compares the adaptive limit with the best fixed one.
fn adaptive(report: &mut Report, throughput: &str) {
    let fixed =
        |figure: &&Figure| figure.row == throughput && figure.column == OURS && figure.variant != ADAPTIVE;
    let best = report.figures.iter().filter(fixed).max_by(|a, b| a.spread.median.total_cmp(&b.spread.median));
    let adaptive =
        report.figures.iter().find(|figure| figure.row == throughput && figure.variant == ADAPTIVE);
    let (Some(best), Some(adaptive)) = (best.cloned(), adaptive.cloned()) else { return };
    report.compare(Some(&adaptive), Some(&best), None);
    let ratios: Vec<f64> =
        adaptive.rounds.iter().zip(&best.rounds).map(|(ours, fixed)| ours / fixed).collect();
    let Some(bound) = median_at_least(&ratios).and_then(|bound| Spread::of(&[bound])) else { return };
    report.ratios.push(Ratio {
        row: format!("{throughput}, lower bound"),
        ours: adaptive.label(),
        other: best.label(),
        spread: bound,
        target: Some(ADAPTIVE_TARGET),
    });
}
