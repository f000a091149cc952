//! `PATTERN[,export=/NAME]…`: files that clients must not cache.

use std::str::FromStr;

use tombolo_sys::pattern::Pattern;

use super::export::{ExportName, named_exports};
use crate::setting::behind_word;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskArg {
    pub pattern: Pattern,
    /// Exports with such files; all if empty.
    pub exports: Vec<ExportName>,
}

impl FromStr for AskArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (pattern, settings) = behind_word(text);
        let pattern = pattern.parse::<Pattern>().map_err(|error| error.to_string())?;
        Ok(Self { pattern, exports: named_exports(settings)? })
    }
}
