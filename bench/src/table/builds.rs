//! Job of shell commands in a directory, itself and through mounts.

use std::path::Path;

use super::Plan;
use super::mounts::{Place, Way};
use crate::error::Result;
use crate::files::Steps;
use crate::measure::{Placement, go_on};
use crate::report::{Report, Unit};
use crate::sheet::{Sheet, turns};

/// Row of the sum of all steps.
const ALL: &str = "in all";

/// Measures the steps on each column, with a server and a mount of its own in each turn.
pub fn measure(plan: &Plan, sheet: Sheet<'_, String, Way>, place: &Place, job: &Steps<'_>) -> Result<Report> {
    let mut report = sheet.report();
    let is_summed = sheet.rows.iter().any(|row| row == ALL);
    Placement::leave()?;
    for way in turns(sheet.rounds(), &plan.columns(&sheet.columns, Way::id)?) {
        go_on()?;
        let took = job.timed(&place.side(way)?.path(Path::new("job")))?;
        let steps = job.steps.iter().map(|(step, _)| *step).zip(took.iter().copied());
        for (step, took) in steps.chain(is_summed.then(|| (ALL, took.iter().sum()))) {
            report.add(step, "", &way.name, Unit::Seconds, took.as_secs_f64());
        }
    }
    Ok(sheet.finish(report))
}
