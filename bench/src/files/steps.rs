//! Job of several shell scripts.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::error::{Doing, Result};
use crate::measure::go_on;
use crate::peer::completed;

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
            completed(name, &mut command)?;
            Ok(begun.elapsed())
        };
        self.steps.iter().map(step).collect()
    }
}
