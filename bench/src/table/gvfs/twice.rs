//! Job that runs twice in a row on each column: first with all caches cold, then warm.

use std::path::Path;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::site::{Column, Site, drop_caches};
use crate::error::Result;
use crate::measure::go_on;
use crate::report::{Figure, Report, Unit};
use crate::sheet::{Named, Sheet, turns};

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

/// Runs the job cold and then warm on each column in every round, each time with a fresh mount and cache for
/// both runs, and adds the times to the report.
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
    let (rows, mut failed) = (job.rows.join(", "), Vec::new());
    for column in turns(rounds, &columns) {
        go_on()?;
        if failed.contains(column) {
            continue;
        }
        let done = both(report, site, *column, &rows, job);
        if done.is_err() {
            failed.push(*column);
            let is_of_column =
                |figure: &Figure| job.rows.contains(&&*figure.row) && figure.column == column.name();
            report.figures.retain(|figure| !is_of_column(figure));
        }
        report.or_absent(&format!("{rows}, {}", column.name()), done)?;
    }
    Ok(())
}

fn both(report: &mut Report, site: &Site, column: Column, rows: &str, job: &Job<'_>) -> Result<()> {
    let mut add = |variant: &str, took: &[Duration]| {
        for (row, took) in job.rows.iter().zip(took.iter().map(Duration::as_secs_f64)) {
            let (unit, value) = match job.bytes {
                Some(bytes) => (Unit::BytesPerSecond, bytes as f64 / took),
                None => (Unit::Nanoseconds, took * 1e9),
            };
            report.add(row, variant, column.name(), unit, value);
        }
    };
    if column == Column::Bare {
        add(COLD, &[site.bare(job.bare_bytes)?]);
        return Ok(());
    }
    let side = site.fresh(column)?;
    drop_caches()?;
    let mut asked = Vec::new();
    for variant in [COLD, WARM] {
        go_on()?;
        let before = site.origin().requests()?;
        add(variant, &(job.run)(&side.root)?);
        asked.push((variant, site.origin().requests()?.since(&before)));
    }
    for (variant, asked) in asked.into_iter().filter(|_| column.is_far()) {
        let what = format!("{rows}, {}, {variant}: requests at the origin", column.name());
        report.target(&what, "counted, in the last round", asked.text(), None);
    }
    Ok(())
}

/// Sets the words of all such tables: their directory and method.
pub fn describe<R: Named + DeserializeOwned>(sheet: &mut Sheet<'_, R, Column>) {
    let rounds = sheet.rounds();
    sheet.set("twice", &format!(
        "{rounds} rounds, in each of which every column has one turn, with a mount and a cache of its own below {{disk}}, in rotating order; nothing is pinned. \
         Each turn is two runs in a row: `{COLD}`: after the kernel's caches were dropped (drop_caches), and with an empty cache; `{WARM}`: once \
         more, by the same mount. A figure is the median of its rounds (quartiles in brackets), a ratio the median of the ratios within each round",
    ));
}
