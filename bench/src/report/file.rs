//! Reports as files: `NAME.json` and `NAME.svg`.

use std::fs;
use std::path::Path;

use super::{Report, chart};
use crate::error::{Doing, Error, Result};

/// Writes both files of a report into a folder, which is made.
pub fn write(report: &Report, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).doing_to("make", folder)?;
    let path = folder.join(format!("{}.json", report.name));
    let mut text = serde_json::to_string_pretty(report).doing_to("encode", &path)?;
    text.push('\n');
    fs::write(&path, text).doing_to("write", &path)?;
    chart::draw(report, &folder.join(format!("{}.svg", report.name)))
}

/// Reads a report back.
pub fn read(path: &Path) -> Result<Report> {
    let text = fs::read_to_string(path).doing_to("read", path)?;
    serde_json::from_str(&text).map_err(|source| Error::Report { path: path.to_owned(), source })
}
