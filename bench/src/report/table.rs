//! Text tables of a report.

use comfy_table::Table;
use comfy_table::presets::UTF8_FULL_CONDENSED;

use super::{Figure, Report, Target, digits};

impl Report {
    /// Returns all tables with their conditions.
    pub fn text(&self) -> String {
        let mut parts = vec![self.title.clone()];
        if self.quick {
            parts.push("A smoke test: these figures mean nothing.".to_owned());
        }
        if !self.targets.is_empty() {
            parts.push(targets_table(&self.targets));
        }
        parts.push(self.figures_table());
        parts.extend(self.ratios_table());
        parts.extend(self.costs_table());
        parts.push(self.notes());
        parts.join("\n\n") + "\n"
    }

    /// Returns the rows of the table: operation and variant. Items without variants share the variants' rows.
    fn rows(&self) -> Vec<(&str, &str)> {
        let rows = unique(self.figures.iter().map(|figure| (figure.row.as_str(), figure.variant.as_str())));
        let varies = |row: &str| rows.iter().any(|(other, variant)| *other == row && !variant.is_empty());
        rows.iter().copied().filter(|(row, variant)| !variant.is_empty() || !varies(row)).collect()
    }

    fn columns(&self) -> Vec<&str> {
        unique(self.figures.iter().map(|figure| figure.column.as_str()))
    }

    fn figures_table(&self) -> String {
        let mut table = table();
        let columns = self.columns();
        table.set_header(["", ""].into_iter().chain(columns.iter().copied()));
        for (row, variant) in self.rows() {
            let cells = columns.iter().map(|column| self.figure(row, column, variant).map(cell));
            let cells = cells.map(Option::unwrap_or_default);
            table.add_row([row.to_owned(), variant.to_owned()].into_iter().chain(cells));
        }
        table.trim_fmt()
    }

    fn ratios_table(&self) -> Option<String> {
        if self.ratios.is_empty() {
            return None;
        }
        let mut table = table();
        table.set_header(["", "ours", "against", "times better (quartiles)", "least to most", "target", ""]);
        for ratio in &self.ratios {
            let spread = &ratio.spread;
            table.add_row([
                ratio.row.clone(),
                ratio.ours.clone(),
                ratio.other.clone(),
                format!("{} ({}–{})", digits(spread.median), digits(spread.q1), digits(spread.q3)),
                format!("{}–{}", digits(spread.min), digits(spread.max)),
                ratio.target.map(|target| format!("≥ {target}")).unwrap_or_default(),
                ratio.target.map(|target| verdict(spread.median, target)).unwrap_or_default(),
            ]);
        }
        Some(table.trim_fmt())
    }

    fn costs_table(&self) -> Option<String> {
        let mut table = table();
        table.set_header([
            "",
            "",
            "",
            "99 of 100",
            "server CPU",
            "server switches",
            "server system calls",
            "caller CPU",
            "caller switches",
        ]);
        let costly = self.figures.iter().filter_map(|figure| Some((figure, figure.cost?)));
        let costly = costly.filter(|(_, cost)| cost.server_cpu_ns > 0.0);
        let mut any = false;
        for (figure, cost) in costly {
            any = true;
            let time = |ns| super::Unit::Nanoseconds.text(ns);
            table.add_row([
                figure.row.clone(),
                figure.variant.clone(),
                figure.column.clone(),
                figure.p99_ns.map(time).unwrap_or_default(),
                time(cost.server_cpu_ns),
                digits(cost.server_switches),
                figure.server_syscalls.map(digits).unwrap_or_default(),
                time(cost.caller_cpu_ns),
                digits(cost.caller_switches),
            ]);
        }
        any.then(|| format!("Per operation:\n\n{}", table.trim_fmt()))
    }

    fn notes(&self) -> String {
        let mut lines = Vec::new();
        lines.push(format!("- made by {}", self.command));
        lines.push(format!("- {}", self.machine.line()));
        lines.extend(self.conditions.iter().map(|condition| format!("- {condition}")));
        lines.extend(self.absent.iter().map(|absent| format!("- not measured: {absent}")));
        lines.join("\n")
    }
}

/// Returns the table of targets and results.
fn targets_table(targets: &[Target]) -> String {
    let mut table = table();
    table.set_header(["", "target", "found", ""]);
    for target in targets {
        table.add_row([&target.what, &target.target, &target.found, target.verdict()]);
    }
    table.trim_fmt()
}

fn table() -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table
}

fn cell(figure: &Figure) -> String {
    let spread = &figure.spread;
    let median = figure.unit.text(spread.median);
    if figure.rounds.len() < 2 {
        return median;
    }
    let number = |value| figure.unit.text(value).split(' ').next().unwrap_or_default().to_owned();
    // Quartiles are printed without a unit if it is the median's.
    let same_unit = |value| figure.unit.text(value).split(' ').nth(1) == median.split(' ').nth(1);
    if same_unit(spread.q1) && same_unit(spread.q3) {
        format!("{median} ({}–{})", number(spread.q1), number(spread.q3))
    } else {
        format!("{median} ({}–{})", figure.unit.text(spread.q1), figure.unit.text(spread.q3))
    }
}

fn verdict(median: f64, target: f64) -> String {
    if median >= target {
        "met".to_owned()
    } else {
        format!("missed: {:.0} % of it", median / target * 100.0)
    }
}

fn unique<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for item in items {
        if !found.contains(&item) {
            found.push(item);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Spread;
    use crate::report::{Ratio, Unit};

    fn report() -> Report {
        let mut report = Report::new("x", "A table", false);
        report.figures.push(Figure::single("stat", "same core", "ours", Unit::Nanoseconds, 2000.0));
        report.figures.push(Figure::single("stat", "same core", "local", Unit::Nanoseconds, 400.0));
        report.ratios.push(Ratio::new("stat", "ours", "peer", Spread::single(1.5), Some(2.0)));
        report.absent("peer: not installed");
        report
    }

    #[test]
    fn table_shows_figures_missed_targets_and_absent_columns() {
        let text = report().text();
        for part in [
            "2.00 µs",
            "400 ns",
            "missed: 75 % of it",
            "not measured: peer: not installed",
            "made by tombolo-bench",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(Report { quick: true, ..report() }.text().contains("mean nothing"));
    }
}
