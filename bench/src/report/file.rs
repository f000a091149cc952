//! Reports as files: `NAME.json` and `NAME.svg`.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::{Report, chart};
use crate::error::{Doing, Error, Result};

/// Writes both files of a report into a folder, which is made.
pub fn write(report: &Report, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).doing_to("make", folder)?;
    let path = folder.join(format!("{}.json", report.name));
    let mut text = serde_json::to_string_pretty(report).doing_to("encode", &path)?;
    text.push('\n');
    save(&path, &text)?;
    let path = folder.join(format!("{}.svg", report.name));
    let picture = chart::draw(report).map_err(|reason| Error::Drawing { path: path.clone(), reason })?;
    save(&path, &picture)
}

/// With the usual mode, whatever the umask is: a back end in this process may have cleared it.
fn save(path: &Path, text: &str) -> Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o644);
    options.open(path).and_then(|mut file| file.write_all(text.as_bytes())).doing_to("write", path)
}

/// Reads a report back.
pub fn read(path: &Path) -> Result<Report> {
    let text = fs::read_to_string(path).doing_to("read", path)?;
    serde_json::from_str(&text).map_err(|source| Error::Report { path: path.to_owned(), source })
}
