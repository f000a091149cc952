//! Sources of C projects.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Result};
use crate::peer::in_checkout;

/// Returns a project's archive; fails if it or what its build depends on is missing.
pub fn source(project: &str) -> Result<PathBuf> {
    if project == "httpd" && Command::new("apr-1-config").arg("--version").output().is_err() {
        return Err(Error::Absent("httpd needs libapr1-dev, libaprutil1-dev and libpcre2-dev".to_owned()));
    }
    in_checkout(Path::new(&format!(".cache/sources/{project}.tar.gz")))
        .map_err(|error| Error::Absent(format!("{error} (tests/guests/fetch-source {project} fetches it)")))
}
