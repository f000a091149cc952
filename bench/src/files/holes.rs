//! Copies of sparse files.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use crate::error::{Doing, Result};
use crate::peer::completed;

/// Copies a file or directory with holes and times, and syncs it.
pub fn copy_with_holes(from: &Path, to: &Path) -> Result<()> {
    let mut command = Command::new("cp");
    completed("cp", command.args(["--archive", "--sparse=always", "--"]).arg(from).arg(to))?;
    File::open(to).and_then(|file| file.sync_all()).doing_to("sync", to)
}
