//! Targets that are not ratios, with results.

use serde::Serialize;

use super::Report;

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
