//! What was aimed for where it is no ratio, beside what was found.

use serde::Serialize;

use super::Report;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Aim {
    pub what: String,
    pub aim: String,
    pub found: String,
    /// Whether that is enough; none where nothing was aimed for.
    pub is_met: Option<bool>,
}

impl Aim {
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
}
