//! `tombolo doctor`: reports the features that this machine supports, with remedies.

mod fuse;
mod kernel;
mod machine;
mod wakeups;

use std::io::{self, Write};

use clap::Args;
use serde::Serialize;

use crate::failure::{Failure, OrCannot, Outcome};
use crate::table::table;

/// Check what this machine supports, and suggest how to enable the rest.
///
/// Prints a line for each feature: `ok`, `warn` (works, with limits) or `missing`. Exits with 1 if an
/// essential one is missing: Linux 5.6 or newer, /proc, or shared memory with seals (memfd_create).
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct DoctorArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  tombolo doctor
  tombolo doctor --json | jq '.findings[] | select(.level != \"ok\")'";

impl DoctorArgs {
    pub fn run(&self) -> Outcome {
        let findings: Vec<_> = [kernel::findings(), fuse::findings(), machine::findings()].concat();
        let text = if self.json { as_json(&findings) } else { as_table(&findings) };
        writeln!(io::stdout(), "{text}").or_cannot("print the results")?;
        let lacking: Vec<_> = findings.iter().filter(|f| f.essential && f.level == Level::Missing).collect();
        if lacking.is_empty() {
            return Ok(());
        }
        let names = lacking.iter().map(|finding| finding.name).collect::<Vec<_>>().join(", ");
        Err(Failure::cannot("run on this machine", format!("missing: {names}")).remedy("see the list above"))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Ok,
    /// The feature is restricted or unavailable, which limits or slows some commands only.
    Warn,
    /// The feature is unavailable: commands that need it fail.
    Missing,
}

#[derive(Clone, Debug, Serialize)]
struct Finding {
    name: &'static str,
    level: Level,
    /// `true` if the machine counts as unsuitable without this feature.
    essential: bool,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    mend: Option<String>,
}

impl Finding {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, level: Level::Ok, essential: false, found: found.into(), mend: None }
    }

    fn warn(name: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { level: Level::Warn, mend: Some(mend.into()), ..Self::ok(name, found) }
    }

    fn missing(name: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { level: Level::Missing, ..Self::warn(name, found, mend) }
    }

    fn essential(self) -> Self {
        Self { essential: true, ..self }
    }
}

fn as_json(findings: &[Finding]) -> String {
    serde_json::json!({ "findings": findings }).to_string()
}

fn as_table(findings: &[Finding]) -> String {
    let rows = findings.iter().map(|finding| {
        let level = match finding.level {
            Level::Ok => "ok",
            Level::Warn => "warn",
            Level::Missing => "missing",
        };
        let mend = finding.mend.as_ref().map_or_else(String::new, |mend| format!("; {mend}"));
        vec![level.to_owned(), finding.name.to_owned(), format!("{}{mend}", finding.found)]
    });
    table(&["", "feature", "status"], rows, 3)
}
