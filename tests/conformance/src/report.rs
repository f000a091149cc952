//! Outcomes of cases and the report of a run.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Outcome of a case that does not panic.
pub type Verdict = Result<(), Skip>;

/// Results of cases: those that always apply return nothing.
pub(crate) trait IntoVerdict {
    /// Converts the result.
    fn into_verdict(self) -> Verdict;
}

impl IntoVerdict for () {
    fn into_verdict(self) -> Verdict {
        Ok(())
    }
}

impl IntoVerdict for Verdict {
    fn into_verdict(self) -> Verdict {
        self
    }
}

/// Reason why a case does not apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skip(pub String);

/// Outcome of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Names of the cases that passed.
    pub passed: Vec<&'static str>,
    /// Names and reasons of the cases that failed.
    pub failed: Vec<(&'static str, String)>,
    /// Names and reasons of the cases that did not apply.
    pub skipped: Vec<(&'static str, String)>,
}

impl Report {
    /// Runs a case and records its outcome.
    pub fn run(&mut self, name: &'static str, case: impl FnOnce() -> Verdict) {
        match catch_unwind(AssertUnwindSafe(case)) {
            Ok(Ok(())) => self.passed.push(name),
            Ok(Err(Skip(why))) => self.skipped.push((name, why)),
            Err(panic) => self.failed.push((name, message_of(&*panic))),
        }
    }

    /// Prints the report and requires that every case passed or was skipped for one of these reasons.
    ///
    /// # Panics
    /// If a case failed or was skipped for another reason.
    pub fn expect(&self, title: &str, may_skip: &[&str]) {
        eprintln!("{title}:\n{self}");
        let excused = |why: &String| may_skip.contains(&why.as_str());
        let unexcused = self.skipped.iter().filter(|(_, why)| !excused(why)).count();
        assert!(self.failed.is_empty() && unexcused == 0, "{title}: {self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, why) in &self.skipped {
            writeln!(f, "skip {name}: {why}")?;
        }
        for (name, what) in &self.failed {
            writeln!(f, "FAIL {name}: {what}")?;
        }
        let [passed, failed, skipped] = [self.passed.len(), self.failed.len(), self.skipped.len()];
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

fn message_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("panicked").to_owned()
}
