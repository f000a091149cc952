//! Results of a run: figures, comparisons and conditions.
//!
//! A [`Report`] is printed as tables, and stored as JSON.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

pub use machine::Machine;
use serde::{Deserialize, Serialize};

use crate::args::command;
use crate::error::{Doing, Error, Result};
use crate::measure::{Contest, Cost, Dropped, Entrant, Placement, Series, Spread, Work};

mod machine;
mod table;

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Short name, also of its files.
    pub name: String,
    pub title: String,
    /// Command line that reproduces it.
    pub command: String,
    /// `true` for a smoke test, whose figures mean nothing.
    pub quick: bool,
    pub machine: Machine,
    /// Conditions of the measurement, such as warm or cold caches.
    pub conditions: Vec<String>,
    /// Figures in the order of the table.
    pub figures: Vec<Figure>,
    pub ratios: Vec<Ratio>,
    /// Targets that are not ratios, with the results.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<Target>,
    /// Missing columns or rows, with reasons.
    pub absent: Vec<String>,
}

/// A cell of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    pub row: String,
    /// Distinguishes figures of one row and column, for example by placement or percentile; may be empty.
    pub variant: String,
    pub column: String,
    pub unit: Unit,
    /// Spread of `rounds`.
    pub spread: Spread,
    /// Values by round; of a series: the median time, or of a rate the amount by the mean time. Two figures
    /// may be compared by round only if their turns alternated, in one [`Contest`] or one loop over
    /// [`turns`](crate::sheet::turns). The code checks only that they have equally many rounds.
    pub rounds: Vec<f64>,
    /// 99th percentile in nanoseconds, if measured.
    pub p99_ns: Option<f64>,
    /// Costs per operation other than time.
    pub cost: Option<Cost>,
    /// System calls of the server per operation.
    pub server_syscalls: Option<f64>,
}

/// Comparison of one of our figures with another: above 1, ours is better.
#[derive(Clone, Debug, Serialize)]
pub struct Ratio {
    pub row: String,
    pub ours: String,
    pub other: String,
    pub spread: Spread,
    pub target: Option<f64>,
}

impl Ratio {
    pub fn new(row: &str, ours: &str, other: &str, spread: Spread, target: Option<f64>) -> Self {
        Self { row: row.to_owned(), ours: ours.to_owned(), other: other.to_owned(), spread, target }
    }
}

impl Figure {
    /// Returns a figure that was published elsewhere, or measured once.
    pub fn single(row: &str, variant: &str, column: &str, unit: Unit, value: f64) -> Self {
        Self {
            row: row.to_owned(),
            variant: variant.to_owned(),
            column: column.to_owned(),
            unit,
            spread: Spread::single(value),
            rounds: vec![value],
            p99_ns: None,
            cost: None,
            server_syscalls: None,
        }
    }

    /// Returns the figure of a series: a rate if it has `bytes` or `per_second`, otherwise a time. `None`
    /// without rounds.
    pub fn of(row: &str, series: &Series) -> Option<Self> {
        let rates = |amount: f64| series.turns.iter().map(|turn| amount / turn.mean_ns * 1e9).collect();
        let (unit, rounds): (_, Vec<f64>) = match series.bytes {
            Some(bytes) => (Unit::BytesPerSecond, rates(bytes as f64)),
            None if series.per_second => (Unit::PerSecond, rates(1.0)),
            None => (Unit::Nanoseconds, series.turns.iter().map(|turn| turn.median_ns).collect()),
        };
        let figure = Self::of_series(row, series, unit, rounds)?;
        Some(Self {
            p99_ns: Some(series.quantile_ns(0.99)),
            cost: series.cost,
            server_syscalls: series.server_syscalls,
            ..figure
        })
    }

    /// Returns the 99th percentile of a series, by round. `None` without rounds.
    pub fn p99(row: &str, series: &Series) -> Option<Self> {
        let rounds = series.turns.iter().map(|turn| turn.p99_ns).collect();
        Self::of_series(row, series, Unit::Nanoseconds, rounds)
    }

    /// Returns the servers' processor time per operation as a separate figure, for comparisons. `None`
    /// without rounds, or if the median is 0, as without servers.
    pub fn server_cpu(row: &str, series: &Series) -> Option<Self> {
        let rounds: Vec<f64> = series.turns.iter().map(|turn| turn.cost.server_cpu_ns).collect();
        let figure = Self::of_series(row, series, Unit::Nanoseconds, rounds)?;
        (figure.spread.median > 0.0).then_some(figure)
    }

    /// Returns a cost of the caller per million bytes, by round, as a figure. `None` without rounds or bytes.
    pub fn per_megabyte(row: &str, series: &Series, unit: Unit, what: fn(&Cost) -> f64) -> Option<Self> {
        let megabytes = series.bytes? as f64 / 1e6;
        let rounds = series.turns.iter().map(|turn| what(&turn.cost) / megabytes).collect();
        Self::of_series(row, series, unit, rounds)
    }

    fn of_series(row: &str, series: &Series, unit: Unit, rounds: Vec<f64>) -> Option<Self> {
        Self::of_rounds(row, &series.name.1, &series.name.0, unit, rounds)
    }

    /// Returns a figure of several rounds; `None` without rounds.
    pub fn of_rounds(row: &str, variant: &str, column: &str, unit: Unit, rounds: Vec<f64>) -> Option<Self> {
        let spread = Spread::of(&rounds)?;
        Some(Self { spread, rounds, ..Self::single(row, variant, column, unit, 0.0) })
    }

    /// Returns the lesser of two figures, each times its factor: by round if they have equally many rounds,
    /// otherwise of their medians. It is the target of a rate that must reach at least one of the two.
    pub fn lesser(one: &Self, one_times: f64, other: &Self, other_times: f64) -> Option<Self> {
        let rounds = one.by_round(other, |a, b| (a * one_times).min(b * other_times));
        let label =
            format!("the lesser of {one_times} × {} and {other_times} × {}", one.label(), other.label());
        Self::of_rounds(&one.row, "", &label, one.unit, rounds)
    }

    /// Returns this figure plus a multiple of another: by round if they have equally many rounds, otherwise
    /// of their medians.
    pub fn plus(&self, times: f64, other: &Self) -> Option<Self> {
        let rounds = self.by_round(other, |one, other| one + other * times);
        let label = format!("{} + {times} × {}", self.column, other.row);
        Self::of_rounds(&self.row, "", &label, self.unit, rounds)
    }

    /// Combines two figures by round if they have equally many rounds, otherwise by their medians.
    fn by_round(&self, other: &Self, combine: impl Fn(f64, f64) -> f64) -> Vec<f64> {
        if self.rounds.len() != other.rounds.len() {
            return vec![combine(self.spread.median, other.spread.median)];
        }
        self.rounds.iter().zip(&other.rounds).map(|(one, other)| combine(*one, *other)).collect()
    }

    pub fn label(&self) -> String {
        if self.variant.is_empty() {
            self.column.clone()
        } else {
            format!("{}, {}", self.column, self.variant)
        }
    }
}

impl Report {
    pub fn new(name: &str, title: &str, quick: bool) -> Self {
        Self {
            name: name.to_owned(),
            title: title.to_owned(),
            command: command(),
            quick,
            machine: Machine::here(),
            conditions: Vec::new(),
            figures: Vec::new(),
            ratios: Vec::new(),
            targets: Vec::new(),
            absent: Vec::new(),
        }
    }

    pub fn condition(&mut self, text: impl Into<String>) {
        self.conditions.push(text.into());
    }

    /// Adds the value of another round to a figure.
    pub fn add(&mut self, row: &str, variant: &str, column: &str, unit: Unit, value: f64) {
        let is_it =
            |figure: &Figure| (&*figure.row, &*figure.variant, &*figure.column) == (row, variant, column);
        let at = self.figures.iter().position(is_it);
        let mut rounds = at.map_or_else(Vec::new, |at| self.figures[at].rounds.clone());
        rounds.push(value);
        let Some(figure) = Figure::of_rounds(row, variant, column, unit, rounds) else { return };
        match at {
            Some(at) => self.figures[at] = figure,
            None => self.figures.push(figure),
        }
    }

    /// Adds a missing item with its reason, once.
    pub fn absent(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.absent.contains(&text) {
            self.absent.push(text);
        }
    }

    /// Returns the value of `made`, or adds `what` with the error to the missing items. An interruption is
    /// added too, unlike by [`Report::or_absent`]: an interrupted run publishes no further report.
    pub fn present<T>(&mut self, what: &str, made: Result<T>) -> Option<T> {
        made.map_err(|error| self.absent(format!("{what}: {error}"))).ok()
    }

    /// Adds an item that failed to the missing ones. Fails only for an interruption, which is not added.
    pub fn or_absent(&mut self, what: &str, done: Result<()>) -> Result<()> {
        match done {
            Err(Error::Interrupted) => Err(Error::Interrupted),
            done => {
                self.present(what, done);
                Ok(())
            }
        }
    }

    /// Adds a contestant to the list, or reports why it cannot take part.
    pub fn enter<'a>(
        &mut self,
        entrants: &mut Vec<Entrant<'a>>,
        row: &str,
        name: (&str, &str),
        work: Result<Work<'a>>,
        servers: &[u32],
        place: impl Into<Option<Placement>>,
    ) {
        let work = self.present(&format!("{row}, {} {}", name.0, name.1), work);
        entrants.extend(work.map(|work| Entrant::new(name, work, servers, place)));
    }

    /// Runs the contest of a row, and records the results.
    pub fn contest(&mut self, row: &str, contest: &Contest, entrants: Vec<Entrant<'_>>) -> Vec<Series> {
        let (series, dropped) = contest.run(entrants);
        self.take(row, &series, &dropped);
        series
    }

    /// Runs one contest of all rows; the name of each entrant is its row and column.
    pub fn contest_of_rows(&mut self, contest: &Contest, entrants: Vec<Entrant<'_>>) -> Vec<Series> {
        let (series, dropped) = contest.run(entrants);
        for series in &series {
            let (row, column) = &series.name;
            let figure = Figure::of(row, series);
            self.figures.extend(figure.map(|it| Figure {
                column: column.clone(),
                variant: String::new(),
                ..it
            }));
        }
        for Dropped { name: (row, column), reason } in dropped {
            self.absent(format!("{row}, {column}: {reason}"));
        }
        series
    }

    /// Records the results of one row's contest.
    pub fn take(&mut self, row: &str, series: &[Series], dropped: &[Dropped]) {
        self.figures.extend(series.iter().filter_map(|series| Figure::of(row, series)));
        for dropped in dropped {
            let (column, variant) = &dropped.name;
            self.absent(format!("{row}, {column} {variant}: {}", dropped.reason));
        }
    }

    /// Returns the figure of a row, column and variant, or else the column's figure without a variant.
    pub fn figure(&self, row: &str, column: &str, variant: &str) -> Option<&Figure> {
        let in_cell = |figure: &&Figure| figure.row == row && figure.column == column;
        let of_variant =
            |wanted: &str| self.figures.iter().filter(in_cell).find(|figure| figure.variant == wanted);
        of_variant(variant).or_else(|| of_variant(""))
    }

    /// Returns the best variant of a column in a row.
    pub fn best(&self, row: &str, column: &str) -> Option<&Figure> {
        let of_column = self.figures.iter().filter(|figure| figure.row == row && figure.column == column);
        of_column.reduce(|best, figure| if figure.better_than(best) { figure } else { best })
    }

    /// Compares two cells of a row, each by column and variant.
    pub fn compare_cells(&mut self, row: &str, ours: (&str, &str), other: (&str, &str), target: Option<f64>) {
        let [ours, other] = [ours, other].map(|(column, variant)| self.figure(row, column, variant).cloned());
        self.compare(ours.as_ref(), other.as_ref(), target);
    }

    /// Compares two figures, by round if they have equally many rounds, and records the ratio. Does nothing
    /// if one is missing, or if their ratio is recorded already.
    pub fn compare(&mut self, ours: Option<&Figure>, other: Option<&Figure>, target: Option<f64>) {
        let (Some(ours), Some(other)) = (ours, other) else { return };
        let ratio = ratio(ours, other, target);
        let is_new = |ratio: &Ratio| {
            self.ratios
                .iter()
                .all(|it| (&it.row, &it.ours, &it.other) != (&ratio.row, &ratio.ours, &ratio.other))
        };
        self.ratios.extend(ratio.filter(is_new));
    }
}

impl Figure {
    fn better_than(&self, other: &Figure) -> bool {
        if self.unit.more_is_better() {
            self.spread.median > other.spread.median
        } else {
            self.spread.median < other.spread.median
        }
    }
}

fn ratio(ours: &Figure, other: &Figure, target: Option<f64>) -> Option<Ratio> {
    let better =
        |ours: f64, theirs: f64| if other.unit.more_is_better() { ours / theirs } else { theirs / ours };
    let spread = Spread::of(&ours.by_round(other, better))?;
    Some(Ratio::new(&ours.row, &ours.label(), &other.label(), spread, target))
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Target {
    pub what: String,
    pub target: String,
    pub found: String,
    /// `true` if the target is met; `None` without a target.
    pub is_met: Option<bool>,
}

impl Target {
    pub fn verdict(&self) -> &'static str {
        match self.is_met {
            Some(true) => "met",
            Some(false) => "missed",
            None => "",
        }
    }
}

impl Report {
    /// Records a target and its result, in place of an earlier one.
    pub fn target(&mut self, what: &str, target: &str, found: impl Into<String>, is_met: Option<bool>) {
        let (what, target, found) = (what.to_owned(), target.to_owned(), found.into());
        let target = Target { what, target, found, is_met };
        match self.targets.iter_mut().find(|earlier| earlier.what == target.what) {
            Some(earlier) => *earlier = target,
            None => self.targets.push(target),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    Nanoseconds,
    Seconds,
    BytesPerSecond,
    PerSecond,
    Bytes,
    Count,
    /// Multiple of another value.
    Times,
    Percent,
    /// Count per million bytes.
    PerMegabyte,
    /// Time per million bytes.
    NanosecondsPerMegabyte,
}

impl Unit {
    pub fn more_is_better(self) -> bool {
        matches!(self, Unit::BytesPerSecond | Unit::PerSecond)
    }

    /// Formats a value with its unit: a count as an integer, a percentage to three decimals, others by
    /// [`digits`].
    pub fn text(self, value: f64) -> String {
        match self {
            Unit::Nanoseconds if value < 1e3 => format!("{} ns", digits(value)),
            Unit::Nanoseconds if value < 1e7 => format!("{} µs", digits(value / 1e3)),
            Unit::Nanoseconds => format!("{} ms", digits(value / 1e6)),
            Unit::Seconds => format!("{} s", digits(value)),
            Unit::BytesPerSecond => format!("{} MB/s", digits(value / 1e6)),
            Unit::PerSecond => format!("{} k/s", digits(value / 1e3)),
            Unit::Bytes => format!("{} MB", digits(value / 1e6)),
            Unit::Count => format!("{value:.0}"),
            Unit::Times => format!("{} ×", digits(value)),
            Unit::Percent => format!("{value:.3} %"),
            Unit::PerMegabyte => format!("{} /MB", digits(value)),
            Unit::NanosecondsPerMegabyte => format!("{} µs/MB", digits(value / 1e3)),
        }
    }
}

/// Formats three significant digits, but at most two decimals, and all digits of the integer part.
pub(super) fn digits(value: f64) -> String {
    let size = value.abs();
    let places = if size >= 99.95 {
        0
    } else if size >= 9.995 {
        1
    } else {
        2
    };
    format!("{value:.places$}")
}

/// Writes a report into a folder, which is created. A new file's mode is 0644 less the umask; by default it
/// would be 0666, writable by everyone if a back end in this process has cleared the umask.
pub fn write(report: &Report, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).doing_to("make", folder)?;
    let path = folder.join(format!("{}.json", report.name));
    let text = serde_json::to_string_pretty(report).doing_to("encode", &path)? + "\n";
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o644);
    options.open(&path).and_then(|mut file| file.write_all(text.as_bytes())).doing_to("write", &path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(column: &str, unit: Unit, rounds: &[f64]) -> Figure {
        Figure::of_rounds("row", "", column, unit, rounds.to_vec()).unwrap()
    }

    #[test]
    fn ratio_over_one_means_better_for_times_and_rates() {
        let ours = figure("ours", Unit::Nanoseconds, &[10.0, 20.0, 10.0]);
        let other = figure("other", Unit::Nanoseconds, &[20.0, 40.0, 30.0]);
        assert_eq!(ratio(&ours, &other, None).unwrap().spread.median, 2.0);
        let ours = figure("ours", Unit::BytesPerSecond, &[30.0]);
        let other = figure("other", Unit::BytesPerSecond, &[20.0]);
        assert_eq!(ratio(&ours, &other, None).unwrap().spread.median, 1.5);
    }

    #[test]
    fn best_variant_of_a_column_is_compared() {
        let mut report = Report::new("x", "x", true);
        let mut slow = figure("peer", Unit::Nanoseconds, &[50.0]);
        slow.variant = "two cores".to_owned();
        let mut fast = figure("peer", Unit::Nanoseconds, &[20.0]);
        fast.variant = "same core".to_owned();
        report.figures = vec![slow, fast, figure("ours", Unit::Nanoseconds, &[10.0])];
        assert_eq!(report.best("row", "peer").unwrap().variant, "same core");
    }

    #[test]
    fn values_read_with_three_digits() {
        assert_eq!(Unit::Nanoseconds.text(7.894), "7.89 ns");
        assert_eq!(Unit::Nanoseconds.text(45_123.0), "45.1 µs");
        assert_eq!(Unit::Nanoseconds.text(82_611_000.0), "82.6 ms");
        assert_eq!(Unit::BytesPerSecond.text(2_345e6), "2345 MB/s");
        assert_eq!(Unit::Count.text(1024.0), "1024");
        assert_eq!(digits(99.96), "100");
    }
}
