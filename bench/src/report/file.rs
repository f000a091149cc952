//! Reports as files: `NAME.json`.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::Report;
use crate::error::{Doing, Result};

/// Writes a report into a folder, which is created. The mode does not depend on the umask, which a back end
/// in this process may have cleared.
pub fn write(report: &Report, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).doing_to("make", folder)?;
    let path = folder.join(format!("{}.json", report.name));
    let text = serde_json::to_string_pretty(report).doing_to("encode", &path)? + "\n";
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o644);
    options.open(&path).and_then(|mut file| file.write_all(text.as_bytes())).doing_to("write", &path)
}
