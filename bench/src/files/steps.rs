//! Job of several shell scripts.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::error::{Doing, Error, Result};
use crate::measure::go_on;

/// Named scripts with their arguments.
pub struct Steps<'a> {
    pub steps: &'a [(&'a str, &'a str)],
    pub arguments: Vec<OsString>,
}

impl Steps<'_> {
    /// Returns the time of each step in a new directory, which the last step must leave empty.
    pub fn timed(&self, folder: &Path) -> Result<Vec<Duration>> {
        let took = self.done(folder)?;
        fs::remove_dir(folder).doing_to("remove", folder)?;
        Ok(took)
    }

    /// Runs steps that may leave files, and returns their times.
    pub fn done(&self, folder: &Path) -> Result<Vec<Duration>> {
        fs::create_dir_all(folder).doing_to("make", folder)?;
        let step = |(name, script): &(&str, &str)| {
            go_on()?;
            let begun = Instant::now();
            let mut command = Command::new("sh");
            command.args(["-c", script, "sh"]).args(&self.arguments).current_dir(folder);
            finish(name, &mut command)?;
            Ok(begun.elapsed())
        };
        self.steps.iter().map(step).collect()
    }
}

fn finish(what: &str, command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().doing(|| what.to_owned())?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().last().unwrap_or_default();
    Err(Error::Wrong { what: what.to_owned(), answer: format!("{}: {last}", output.status) })
}
