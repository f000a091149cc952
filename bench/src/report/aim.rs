//! What was aimed for, beside what was found.

use serde::Serialize;

use super::unit::digits;
use super::{Figure, Report, ratio};

/// One aim.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Aim {
    /// What it is about.
    pub what: String,
    /// What it should be, in words.
    pub aim: String,
    /// What it is.
    pub found: String,
    /// Whether that is enough; none where nothing was aimed for, or nothing measured.
    pub is_met: Option<bool>,
}

impl Aim {
    /// The verdict, for people.
    pub fn verdict(&self) -> &'static str {
        match self.is_met {
            Some(true) => "met",
            Some(false) => "missed",
            None => "",
        }
    }
}

impl Report {
    /// States an aim and what was found.
    pub fn aim(&mut self, what: &str, aim: &str, found: impl Into<String>, is_met: Option<bool>) {
        let (what, aim, found) = (what.to_owned(), aim.to_owned(), found.into());
        self.aims.push(Aim { what, aim, found, is_met });
    }

    /// States an aim for one of our figures beside another: `least` is how many times better ours shall be, where that is wanted. What is
    /// found is said in times of the other, so it is less than one where a shorter time is better.
    pub fn aim_beside(
        &mut self,
        what: &str,
        aim: &str,
        least: impl Into<Option<f64>>,
        ours: Option<&Figure>,
        other: Option<&Figure>,
    ) {
        let Some((ours, other, ratio)) =
            ours.zip(other).and_then(|(ours, other)| Some((ours, other, ratio(ours, other, None)?)))
        else {
            return self.aim(what, aim, "not measured", None);
        };
        let (better, least) = (ratio.spread.median, least.into());
        let times = if other.unit.more_is_better() { better } else { 1.0 / better };
        let [a, b] = [ours, other].map(|figure| figure.unit.text(figure.spread.median));
        self.aim(
            what,
            aim,
            format!("{} × ({a}; {}: {b})", digits(times), other.who()),
            least.map(|least| better >= least),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Unit;

    #[test]
    fn an_aim_is_judged_by_the_ratio_and_told_in_times_of_the_other() {
        let mut report = Report::new("x", "x", String::new(), false);
        let figure = |column, unit, value| Figure::single("row", "", column, unit, value);
        let ours = figure("ours", Unit::Nanoseconds, 300.0);
        let line = figure("line", Unit::Nanoseconds, 200.0);
        report.aim_beside("null", "≤ 1.5 × a line", 1.0 / 1.5, Some(&ours), Some(&line));
        let rate = figure("ours", Unit::PerSecond, 1e6);
        let wanted = figure("2 M/s", Unit::PerSecond, 2e6);
        report.aim_beside("many", "≥ 2 M/s", 1.0, Some(&rate), Some(&wanted));
        report.aim_beside("chain", "≤ 1.1 ×", 1.0, None, Some(&wanted));
        let said: Vec<_> = report.aims.iter().map(|aim| (aim.found.as_str(), aim.verdict())).collect();
        assert_eq!(
            said,
            [
                ("1.50 × (300 ns; line: 200 ns)", "met"),
                ("0.50 × (1000 k/s; 2 M/s: 2000 k/s)", "missed"),
                ("not measured", "")
            ]
        );
    }
}
