//! Table 2: gain of each step from the paper's client to its successor.

use super::test_host::{Mover, TestHost, Transfer, add_costs};
use crate::error::Result;
use crate::report::{Figure, Report, Unit};
use crate::sheet::{Sheet, sheet};

const THROUGHPUT: &str = "throughput";

pub(super) fn run(host: &TestHost<'_>) -> Result<Report> {
    let sheet: Sheet<'_, Transfer, Mover> = host.described(sheet!(host.plan, "atomic-table-2")?);
    let (mut report, steps) = (sheet.report(), sheet.columns.clone());
    let mut series = Vec::new();
    for transfer in &sheet.rows {
        let done = host.transfer(&mut report, &sheet.contest(host.contest()), transfer, &steps);
        let done = done.map(|done| series = done);
        report.or_absent(&transfer.name, done)?;
    }
    let mut report = sheet.finish(report);
    for pair in steps.windows(2) {
        let [before, step] = pair else { continue };
        for column in ["here", "paper"] {
            let gained = gain(&report, column, &before.variant, &step.variant);
            report.figures.extend(gained);
        }
        report.compare_cells(THROUGHPUT, ("here", &step.variant), ("here", &before.variant), None);
    }
    add_costs(&mut report, &series, "context switches", Some("processor time"));
    Ok(report)
}

/// Returns a step's throughput relative to that of the previous step, by round.
fn gain(report: &Report, column: &str, before: &str, step: &str) -> Option<Figure> {
    let of = |step| report.figure(THROUGHPUT, column, step);
    let (before, after) = (of(before)?, of(step)?);
    let rounds = after.rounds.iter().zip(&before.rounds).map(|(after, before)| after / before).collect();
    Figure::of_rounds("times the step before", step, column, Unit::Times, rounds)
}
