//! Table 1: throughput and context switches over the in-flight limit; and the result of the adaptive limit.

use super::interval::median_at_least;
use super::test_host::{Mover, TestHost, Transfer, add_costs};
use super::{BIODS, OURS};
use crate::drive::Kind;
use crate::error::Result;
use crate::measure::{Contest, Spread};
use crate::report::{Ratio, Report};
use crate::sheet::{Sheet, sheet};

const LIMITS: [u32; 11] = [1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64];
const QUICK_LIMITS: [u32; 2] = [2, 8];
/// Variant without a fixed limit.
const ADAPTIVE: &str = "adaptive";

/// Minimum multiple of the best throughput of a thread per request; and of its context switches.
const THROUGHPUT_TARGET: f64 = 1.3;
const SWITCHES_TARGET: f64 = 2.5;
const ADAPTIVE_TARGET: f64 = 0.9;

pub(super) fn run(host: &TestHost<'_>) -> Result<Report> {
    let sheet: Sheet<'_, Transfer> = host.described(sheet!(host.plan, "atomic-table-1")?);
    let mut report = sheet.report();
    // Of the costs only the switches are shown, per megabyte.
    let contest = sheet.contest(Contest { costs: false, ..host.contest() });
    let movers = contestants(if host.plan.quick { &QUICK_LIMITS } else { &LIMITS });
    for transfer in &sheet.rows {
        let throughput = &transfer.name;
        let switches = throughput.replace("throughput", "context switches");
        let done = host.transfer(&mut report, &contest, transfer, &movers).map(|series| {
            add_costs(&mut report, &series, &switches, None);
            compare(&mut report, throughput, &switches);
            adaptive(&mut report, throughput);
        });
        report.or_absent(throughput, done)?;
    }
    Ok(sheet.finish(report))
}

fn contestants(limits: &[u32]) -> Vec<Mover> {
    let mover = |limit: u32, kind, name: &str| {
        let variant = if limit == 0 { ADAPTIVE.to_owned() } else { format!("limit {limit}") };
        Mover { name: name.to_owned(), variant, kind, limit, serves: None, count_max: None }
    };
    let biods = limits.iter().map(|&limit| mover(limit, Kind::Biods, BIODS));
    biods.chain([0].iter().chain(limits).map(|&limit| mover(limit, Kind::Tombolo, OURS))).collect()
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
    let of_ours = report.figures.iter().filter(|it| it.row == throughput && it.column == OURS);
    let (adaptive, fixed): (Vec<_>, Vec<_>) = of_ours.partition(|figure| figure.variant == ADAPTIVE);
    let best = fixed.into_iter().max_by(|a, b| a.spread.median.total_cmp(&b.spread.median));
    let (Some(best), Some(adaptive)) = (best.cloned(), adaptive.first().copied().cloned()) else { return };
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
