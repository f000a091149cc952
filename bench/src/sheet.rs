//! Tables as data: title, sizes, rows, columns, conditions, comparisons, limits and published figures, as
//! written in `bench/tables/NAME.toml`.

use std::collections::BTreeMap;
use std::fmt::Display;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result, wrong};
use crate::files::Script;
use crate::measure::{Contest, Placement, Spread};
use crate::report::{Figure, Report, Unit};
use crate::table::Plan;

/// Reads the sheet with this name.
macro_rules! sheet {
    ($plan:expr, $name:literal) => {{
        let text = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tables/", $name, ".toml"));
        $crate::sheet::Sheet::read($plan, $name, text)
    }};
}
pub(crate) use sheet;

/// Returns a table or a part of one: the function that measures the sheet with this name.
macro_rules! part {
    ($name:literal, $measure:expr) => {
        |plan: &$crate::table::Plan| $crate::sheet::measured($crate::sheet::sheet!(plan, $name)?, $measure)
    };
}
pub(crate) use part;

/// Measures a sheet, and completes its report. Threads and processes started meanwhile may run anywhere,
/// unless the function places them.
pub fn measured<'a, R: Named + DeserializeOwned, C: DeserializeOwned>(
    mut sheet: Sheet<'a, R, C>,
    measure: impl FnOnce(&mut Sheet<'a, R, C>, &mut Report) -> Result<()>,
) -> Result<Report> {
    let mut report = sheet.report();
    Placement::leave()?;
    measure(&mut sheet, &mut report)?;
    Placement::leave()?;
    Ok(sheet.finish(report))
}

/// Sheet of a run, with rows and columns of the table's own types.
pub struct Sheet<'a, R = String, C = String> {
    pub plan: &'a Plan,
    /// Name of the report.
    name: &'static str,
    /// Replacements for `{word}` in title and conditions.
    words: BTreeMap<String, String>,
    pub rows: Vec<R>,
    pub columns: Vec<C>,
    written: Written,
}

/// A row or column with its name.
pub trait Named {
    fn name(&self) -> &str;
}

impl Named for String {
    fn name(&self) -> &str {
        self
    }
}

/// A row with the operation that it measures.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row<W> {
    pub name: String,
    pub work: W,
}

impl<W> Named for Row<W> {
    fn name(&self) -> &str {
        &self.name
    }
}

/// Items that any sheet may have; rows and columns, whose types differ by table, are in [`Axes`].
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    title: String,
    /// Number of rounds of a full run, if not the default.
    rounds: Option<usize>,
    /// Sizes in a full run and in a smoke test.
    #[serde(default)]
    numbers: BTreeMap<String, [usize; 2]>,
    #[serde(default)]
    conditions: Vec<String>,
    #[serde(default)]
    ratios: Vec<Ratios>,
    #[serde(default)]
    limits: Vec<Limit>,
    #[serde(default)]
    differences: Vec<Difference>,
    #[serde(default)]
    shares: Vec<Share>,
    #[serde(default)]
    published: Vec<Published>,
    #[serde(default)]
    scripts: BTreeMap<String, Script>,
}

/// Rows and columns of a sheet.
#[derive(Deserialize)]
#[serde(bound(deserialize = "R: Deserialize<'de>, C: Deserialize<'de>"))]
struct Axes<R, C> {
    #[serde(default = "Vec::new")]
    rows: Vec<R>,
    #[serde(default = "Vec::new")]
    columns: Vec<C>,
}

/// Comparison of each of our columns (`ours`) with each of the others (`others`), in some rows and variants.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ratios {
    /// Rows to compare; all rows of the sheet if empty.
    #[serde(default)]
    rows: Vec<String>,
    #[serde(default)]
    variants: Vec<String>,
    ours: Vec<String>,
    others: Vec<String>,
    /// Row and variant of the others, if not the same.
    other_row: Option<String>,
    other_variant: Option<String>,
    /// Figure whose multiple is added to the others.
    plus: Option<Plus>,
    best: Option<Best>,
    /// Alternative to each of the others' figures: the lesser counts.
    or: Option<Lesser>,
    target: Option<f64>,
}

/// The lesser of `times` the others' figure and `column_times` the best variant of `column`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Lesser {
    times: f64,
    column: String,
    column_times: f64,
}

/// Multiple of a figure.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Plus {
    times: f64,
    row: String,
    column: String,
}

/// Sides of a comparison that are represented by their best variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Best {
    Both,
    Other,
}

/// Maximum of a figure's median.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Limit {
    /// Name of the target, if not row and variant.
    what: Option<String>,
    row: String,
    #[serde(default)]
    variant: String,
    column: String,
    most: f64,
}

/// Maximum by which a figure may exceed another of the same row, by the median over the rounds. `ours` and
/// `other` each are a column and a variant.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Difference {
    what: String,
    row: String,
    ours: [String; 2],
    other: [String; 2],
    most: f64,
}

/// Maximum of one figure divided by another of the same row and variant, by the median over the rounds.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Share {
    what: String,
    row: String,
    #[serde(default)]
    variant: String,
    ours: String,
    other: String,
    /// Column that is subtracted from both.
    minus: Option<String>,
    most: f64,
}

/// Figures published elsewhere, by row.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Published {
    #[serde(default)]
    variant: String,
    column: String,
    unit: Unit,
    figures: BTreeMap<String, f64>,
}

impl<'a, R: Named + DeserializeOwned, C: DeserializeOwned> Sheet<'a, R, C> {
    /// Reads a sheet; [`sheet!`] finds its text.
    pub fn read(plan: &'a Plan, name: &'static str, text: &str) -> Result<Self> {
        let failed = |error: toml::de::Error| wrong(&format!("bench/tables/{name}.toml"), &error);
        let mut all: toml::Table = toml::from_str(text).map_err(failed)?;
        let mut axes = toml::Table::new();
        for axis in ["rows", "columns"] {
            axes.extend(all.remove(axis).map(|items| (axis.to_owned(), items)));
        }
        let Axes { rows, columns } = axes.try_into().map_err(failed)?;
        let written: Written = all.try_into().map_err(failed)?;
        let mut sheet = Self { plan, name, words: BTreeMap::new(), rows, columns, written };
        let numbers: Vec<String> = sheet.written.numbers.keys().cloned().collect();
        for name in numbers {
            sheet.set(&name, &sheet.number(&name));
        }
        sheet.set("rounds", &sheet.rounds());
        sheet.set("contest", &sheet.contest(plan.timed()).condition());
        sheet.set("within", &plan.within.display());
        sheet.set("disk", &plan.disk.display());
        Ok(sheet)
    }

    /// Returns a number of the sheet, such as a count of files or seconds; 0 if the sheet has none of this
    /// name.
    pub fn number(&self, name: &str) -> usize {
        let [full, quick] = self.written.numbers.get(name).copied().unwrap_or_default();
        self.plan.scaled(full, quick)
    }

    /// Returns a job of shell commands.
    pub fn script(&self, name: &str) -> Result<Script> {
        let missing = || Error::Absent(format!("no script {name} in bench/tables/{}.toml", self.name));
        self.written.scripts.get(name).cloned().ok_or_else(missing)
    }

    /// Replaces `{word}` in title and conditions, and in the values of later words.
    pub fn set(&mut self, word: &str, value: &dyn Display) {
        let value = self.filled(&value.to_string());
        self.words.insert(word.to_owned(), value);
    }

    /// Returns the number of rounds of a measurement that is not a [`Contest`]: the command line's, else the
    /// sheet's (1 if quick), else the default.
    pub fn rounds(&self) -> usize {
        match self.written.rounds {
            Some(rounds) if self.plan.rounds_given.is_none() => self.plan.scaled(rounds, 1),
            _ => self.plan.rounds(),
        }
    }

    /// Returns a contest with the sheet's number of rounds, unless the run is quick or was given a number.
    pub fn contest(&self, contest: Contest) -> Contest {
        let few = self.written.rounds.filter(|_| !self.plan.quick && self.plan.rounds_given.is_none());
        Contest { rounds: few.unwrap_or(contest.rounds), ..contest }
    }

    pub fn report(&self) -> Report {
        Report::new(self.name, &self.filled(&self.written.title), self.plan.quick)
    }

    /// Completes a report of all figures: compares them, and adds the conditions.
    pub fn finish(self, mut report: Report) -> Report {
        let written = &self.written;
        for published in &written.published {
            let Published { variant, column, unit, figures } = published;
            let figures =
                figures.iter().map(|(row, value)| Figure::single(row, variant, column, *unit, *value));
            report.figures.extend(figures);
        }
        let all: Vec<String> = self.rows.iter().map(|row| row.name().to_owned()).collect();
        for ratios in &written.ratios {
            ratios.add_to(&mut report, if ratios.rows.is_empty() { &all } else { &ratios.rows });
        }
        written.limits.iter().for_each(|limit| limit.add_to(&mut report));
        written.differences.iter().for_each(|difference| difference.add_to(&mut report));
        written.shares.iter().for_each(|share| share.add_to(&mut report));
        report.title = self.filled(&report.title);
        written.conditions.iter().for_each(|condition| report.condition(self.filled(condition)));
        report
    }

    fn filled(&self, text: &str) -> String {
        let filled =
            |text: String, (word, value): (&String, &String)| text.replace(&format!("{{{word}}}"), value);
        self.words.iter().fold(text.to_owned(), filled)
    }
}

impl Ratios {
    fn add_to(&self, report: &mut Report, rows: &[String]) {
        let none = [String::new()];
        let variants = if self.variants.is_empty() { &none } else { self.variants.as_slice() };
        let cells = rows.iter().flat_map(|row| variants.iter().map(move |variant| (row, variant)));
        for (row, variant) in cells {
            for ours in &self.ours {
                for other in &self.others {
                    let ours = match self.best {
                        Some(Best::Both) => report.best(row, ours).cloned(),
                        _ => report.figure(row, ours, variant).cloned(),
                    };
                    let other = self.other(report, row, variant, other);
                    report.compare(ours.as_ref(), other.as_ref(), self.target);
                }
            }
        }
    }

    fn other(&self, report: &Report, row: &str, variant: &str, column: &str) -> Option<Figure> {
        let row = self.other_row.as_deref().unwrap_or(row);
        let other = match self.best {
            Some(_) => report.best(row, column),
            None => report.figure(row, column, self.other_variant.as_deref().unwrap_or(variant)),
        };
        if let Some(Lesser { times, column, column_times }) = &self.or {
            return Figure::lesser(other?, *times, report.best(row, column)?, *column_times);
        }
        match &self.plus {
            Some(Plus { times, row, column }) => other?.plus(*times, report.figure(row, column, "")?),
            None => other.cloned(),
        }
    }
}

impl Limit {
    fn add_to(&self, report: &mut Report) {
        let Self { what, row, variant, column, most } = self;
        let Some(figure) = report.figure(row, column, variant) else { return };
        let (unit, value) = (figure.unit, figure.spread.median);
        let named = if variant.is_empty() { row.clone() } else { format!("{row}, {variant}") };
        let (what, target) = (what.as_ref().unwrap_or(&named), format!("≤ {}", unit.text(*most)));
        report.target(what, &target, unit.text(value), Some(value <= *most));
    }
}

impl Difference {
    /// Compares by round.
    fn add_to(&self, report: &mut Report) {
        let of = |[column, variant]: &[String; 2]| report.figure(&self.row, column, variant);
        let (Some(ours), Some(other)) = (of(&self.ours), of(&self.other)) else { return };
        let unit = ours.unit;
        let more: Vec<f64> = ours.rounds.iter().zip(&other.rounds).map(|(one, other)| one - other).collect();
        let Some(spread) = Spread::of(&more) else { return };
        let [median, q1, q3] = [spread.median, spread.q1, spread.q3].map(|value| unit.text(value));
        let is_met = spread.median <= self.most;
        let target = format!("≤ {}", unit.text(self.most));
        report.target(&self.what, &target, format!("{median} ({q1}–{q3})"), Some(is_met));
    }
}

impl Share {
    /// Divides by round.
    fn add_to(&self, report: &mut Report) {
        let of = |column: &str| Some(report.figure(&self.row, column, &self.variant)?.rounds.clone());
        let (Some(ours), Some(other)) = (of(&self.ours), of(&self.other)) else { return };
        let minus = match &self.minus {
            Some(column) => of(column),
            None => Some(vec![0.0; ours.len()]),
        };
        let rounds = ours.iter().zip(&other).zip(minus.unwrap_or_default());
        let shares: Vec<f64> =
            rounds.map(|((ours, other), minus)| (ours - minus) / (other - minus)).collect();
        let Some(Spread { median, q1, q3, .. }) = Spread::of(&shares) else { return };
        let found = format!("{median:.2} ({q1:.2}–{q3:.2})").replace('-', "−");
        report.target(&self.what, &format!("≤ {}", self.most), found, Some(median <= self.most));
    }
}

/// Yields `items` round by round, each round beginning one item later, so that none is always the first.
pub fn turns<T>(rounds: usize, items: &[T]) -> impl Iterator<Item = &T> {
    let of_round =
        move |round| (0..items.len()).filter_map(move |turn| items.get((turn + round) % items.len()));
    (0..rounds).flat_map(of_round)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::BenchArgs;

    const TEXT: &str = r#"
        title = "{files} files"
        rounds = 3
        rows = ["stat", "find"]
        numbers = { files = [100, 10] }
        conditions = ["{rounds} rounds of {files} files in {where}"]
        ratios = [
            { rows = ["stat"], ours = ["ours"], others = ["theirs"], best = "both", target = 2.0 },
            { rows = ["stat"], variants = ["slow"], ours = ["ours"], others = ["theirs"], best = "other" },
            { rows = ["stat"], variants = ["fast"], ours = ["ours"], others = ["ours"], other_variant = "slow", plus = { times = 0.5, row = "stat", column = "theirs" } },
        ]
        limits = [{ row = "find", column = "ours", most = 1000.0 }]
        [[differences]]
        what = "more"
        row = "stat"
        ours = ["ours", "slow"]
        other = ["ours", "fast"]
        most = 700.0
        [[shares]]
        what = "of theirs"
        row = "stat"
        variant = "slow"
        ours = "ours"
        other = "theirs"
        most = 0.5
        [[shares]]
        what = "added to the paper's, of what theirs adds"
        row = "stat"
        variant = "fast"
        ours = "ours"
        other = "theirs"
        minus = "paper"
        most = 0.5
        [[published]]
        column = "paper"
        unit = "Nanoseconds"
        figures = { stat = 5.0 }
    "#;

    fn plan(quick: bool) -> Plan {
        Plan { quick, ..BenchArgs::parse_from(["tombolo-bench", "waist"]).plan }
    }

    #[test]
    fn sheet_compares_figures_round_by_round() {
        let plan = plan(false);
        let mut sheet: Sheet<'_> = Sheet::read(&plan, "x", TEXT).unwrap();
        sheet.set("where", &"memory, {files} times");
        let mut report = sheet.report();
        for (variant, column, rounds) in [
            ("slow", "ours", [1500.0, 2500.0]),
            ("fast", "ours", [1000.0, 2000.0]),
            ("", "theirs", [3000.0, 4000.0]),
        ] {
            for value in rounds {
                report.add("stat", variant, column, Unit::Nanoseconds, value);
            }
        }
        report.add("find", "", "ours", Unit::Nanoseconds, 1001.0);
        let report = sheet.finish(report);
        assert_eq!(report.title, "100 files");
        assert_eq!(report.conditions, ["3 rounds of 100 files in memory, 100 times"]);
        let ratios: Vec<_> =
            report.ratios.iter().map(|it| (it.ours.as_str(), it.spread.median, it.target)).collect();
        assert_eq!(
            ratios,
            [("ours, fast", 2.5, Some(2.0)), ("ours, slow", 1.8, None), ("ours, fast", 2.625, None)]
        );
        let told: Vec<_> = report.targets.iter().map(|it| (it.found.as_str(), it.verdict())).collect();
        assert_eq!(
            told,
            [
                ("1.00 µs", "missed"),
                ("500 ns (500 ns–500 ns)", "met"),
                ("0.56 (0.53–0.59)", "missed"),
                ("0.33 (0.33–0.33)", "met")
            ]
        );
        assert_eq!(report.ratios[2].other, "ours + 0.5 × stat");
        assert_eq!(report.figure("stat", "paper", "").unwrap().spread.median, 5.0);
    }

    #[test]
    fn smoke_test_has_one_round_of_small_sizes() {
        let plan = plan(true);
        let sheet: Sheet<'_> = Sheet::read(&plan, "x", TEXT).unwrap();
        assert_eq!(
            (sheet.rounds(), sheet.number("files"), sheet.report().title.as_str()),
            (1, 10, "10 files")
        );
        assert!(Sheet::<'_, String>::read(&plan, "x", "title = 'x'\nrow = 1").is_err(), "an unknown key");
    }

    #[test]
    fn every_sheet_can_be_read() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tables");
        for sheet in std::fs::read_dir(folder).unwrap().flatten() {
            let text = std::fs::read_to_string(sheet.path()).unwrap();
            let mut all: toml::Table = toml::from_str(&text).unwrap();
            for axis in ["rows", "columns"] {
                all.remove(axis);
            }
            let written: std::result::Result<Written, _> = all.try_into();
            assert!(written.is_ok(), "{}: {}", sheet.path().display(), written.unwrap_err());
        }
    }

    #[test]
    fn each_round_begins_with_another_item() {
        let order: String = turns(3, &["a", "b", "c"]).copied().collect();
        assert_eq!(order, "abcbcacab");
    }
}
