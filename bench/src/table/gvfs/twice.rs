//! Job that runs twice in a row on each column: first with all caches cold, then warm.

use std::path::Path;
use std::time::Duration;

use super::Plan;
use super::site::{Column, Site, drop_caches};
use crate::error::{Error, Result};
use crate::measure::{Spread, go_on};
use crate::peer::Requests;
use crate::report::{Figure, Report, Unit};

pub const COLD: &str = "cold";
pub const WARM: &str = "warm";

/// Function that runs a job in the tree at this path, and returns the time of each row.
pub type Run<'a> = dyn Fn(&Path) -> Result<Vec<Duration>> + 'a;

/// Job for each column.
pub struct Job<'a> {
    /// Timed rows.
    pub rows: &'a [&'a str],
    pub run: &'a Run<'a>,
    /// Bytes read, if the figure is a rate.
    pub bytes: Option<u64>,
    /// Bytes transferred by [`Column::Bare`].
    pub bare_bytes: u64,
}

/// Seconds of one column by run, row and round, and requests to the origin in the last round by run.
#[derive(Clone, Default)]
struct Times {
    seconds: [Vec<Vec<f64>>; 2],
    asked: [Option<Requests>; 2],
}

/// Runs one turn of each column per round, with its own mount and cache.
pub fn measure(
    report: &mut Report,
    site: &Site,
    columns: &[Column],
    rounds: usize,
    job: &Job<'_>,
) -> Result<()> {
    let columns = site.columns(columns);
    if columns.contains(&Column::SecondLevel) {
        // Fills the proxy on the LAN.
        (job.run)(&site.fresh(Column::SecondLevel)?.root)?;
    }
    let mut times = vec![Some(Times::default()); columns.len()];
    for round in 0..rounds {
        for turn in 0..columns.len() {
            go_on()?;
            let at = (turn + round) % columns.len();
            let (Some(column), Some(of_column)) = (columns.get(at), times.get_mut(at)) else { continue };
            let Some(kept) = of_column else { continue };
            match both(site, *column, job, kept) {
                Ok(()) => {}
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                Err(error) => {
                    report.absent(format!("{}, {}: {error}", job.rows.join(", "), column.name()));
                    *of_column = None;
                }
            }
        }
    }
    for (column, times) in columns.into_iter().zip(times).filter_map(|(column, times)| Some((column, times?)))
    {
        enter(report, column, job, &times);
    }
    Ok(())
}

fn both(site: &Site, column: Column, job: &Job<'_>, times: &mut Times) -> Result<()> {
    let Times { seconds: [cold, warm], asked } = times;
    if column == Column::Bare {
        add(cold, &[site.bare(job.bare_bytes)?]);
        return Ok(());
    }
    let side = site.fresh(column)?;
    drop_caches()?;
    for (seconds, asked) in [cold, warm].into_iter().zip(asked) {
        go_on()?;
        let before = site.origin().requests()?;
        add(seconds, &(job.run)(&side.root)?);
        *asked = column.is_far().then_some(site.origin().requests()?.since(&before));
    }
    Ok(())
}

fn add(seconds: &mut Vec<Vec<f64>>, took: &[Duration]) {
    seconds.resize(took.len(), Vec::new());
    seconds.iter_mut().zip(took).for_each(|(row, took)| row.push(took.as_secs_f64()));
}

fn enter(report: &mut Report, column: Column, job: &Job<'_>, times: &Times) {
    for ((variant, of_run), asked) in [COLD, WARM].into_iter().zip(&times.seconds).zip(&times.asked) {
        for (row, seconds) in job.rows.iter().zip(of_run) {
            let (unit, rounds) = match job.bytes {
                Some(bytes) => {
                    (Unit::BytesPerSecond, seconds.iter().map(|seconds| bytes as f64 / seconds).collect())
                }
                None => (Unit::Nanoseconds, seconds.iter().map(|seconds| seconds * 1e9).collect()),
            };
            report.figures.extend(Figure::of_rounds(row, variant, column.name(), unit, rounds));
        }
        if let Some(asked) = asked {
            let what =
                format!("{}, {}, {variant}: requests at the origin", job.rows.join(", "), column.name());
            report.target(&what, "counted, in the last round", asked.text(), None);
        }
    }
}

/// Returns the number of rounds of a slow table.
pub fn rounds(plan: &Plan, few: usize) -> usize {
    if plan.quick && !plan.rounds_given { 1 } else { plan.rounds_of(few) }
}

/// Adds the conditions of all such tables.
pub fn conditions(report: &mut Report, rounds: usize, disk: &Path) {
    report.condition(format!(
        "{rounds} rounds, in each of which every column has one turn, with a mount and a cache of its own below {}, in rotating order; nothing is pinned. \
         Each turn is two runs in a row: `{COLD}`: after the kernel's caches were dropped (drop_caches), and with an empty cache; `{WARM}`: once \
         more, by the same mount. A figure is the median of its rounds (quartiles in brackets), a ratio the median of the ratios within each round",
        disk.display()
    ));
}

/// Reports the cold time that `ours` adds to the local tree as a share of what `other` adds, by round.
pub fn added(report: &mut Report, row: &str, ours: Column, other: Column, most: f64) {
    let rounds = |column: Column| report.figure(row, column.name(), COLD).map(|figure| figure.rounds.clone());
    let (Some(local), Some(ours_s), Some(other_s)) = (rounds(Column::Local), rounds(ours), rounds(other))
    else {
        return;
    };
    let parts: Vec<f64> = (local.iter().zip(ours_s).zip(other_s))
        .map(|((local, ours), other)| (ours - local) / (other - local))
        .collect();
    let Some(spread) = Spread::of(&parts) else { return };
    report.target(
        &format!("{row}, {COLD}: time that {} adds to local, of what {} adds", ours.name(), other.name()),
        &format!("≤ {most}"),
        format!("{:.2} ({:.2}–{:.2})", spread.median, spread.q1, spread.q3).replace('-', "−"),
        Some(spread.median <= most),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overhead_over_local_is_computed_per_round() {
        let mut report = Report::new("gvfs-build", "x", String::new(), false);
        for (column, rounds) in
            [(Column::Local, [1.0, 2.0]), (Column::Nfs, [11.0, 12.0]), (Column::Exclusive, [2.0, 3.0])]
        {
            let figure = Figure::of_rounds("row", COLD, column.name(), Unit::Nanoseconds, rounds.to_vec());
            report.figures.extend(figure);
        }
        added(&mut report, "row", Column::Exclusive, Column::Nfs, 0.2);
        added(&mut report, "row", Column::Exclusive, Column::SecondLevel, 0.2);
        let told: Vec<_> =
            report.targets.iter().map(|target| (target.found.as_str(), target.verdict())).collect();
        assert_eq!(told, [("0.10 (0.10–0.10)", "met")]);
    }
}
