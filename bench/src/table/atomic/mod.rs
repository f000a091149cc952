//! `atomic`: seed 002's tables and figures, with our client in the place of the one that it describes, beside a client with a thread
//! for each request, bare TCP and libnfs, over links of several speeds.

mod bed;
mod interval;
mod table_1;

use std::io::Write;

use self::bed::Bed;
use super::Plan;
use crate::args::AtomicArgs;
use crate::error::{Error, Result};
use crate::nfs::run_inside_to;
use crate::report::Report;

const OURS: &str = "tombolo";
const BIODS: &str = "thread per request";
/// What the paper found, on machines of its time.
const PAPER: &str = "paper";

/// A part of it: its name, and how its reports come about.
type Part = (&'static str, fn(&Bed<'_>) -> Result<Report>);

const PARTS: [Part; 1] = [("table-1", table_1::run)];

/// Measures, in networks of the run's own unless the arguments say that this is it already. Each report is published when it is there.
pub fn run(
    plan: &Plan,
    args: &AtomicArgs,
    out: &mut dyn Write,
    mut publish: impl FnMut(&Report, &mut dyn Write) -> Result<()>,
) -> Result<()> {
    if !args.here {
        let arguments = std::env::args().skip(1).chain(["--here".to_owned()]).collect::<Vec<_>>();
        return run_inside_to(&arguments.iter().map(String::as_str).collect::<Vec<_>>(), out);
    }
    let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|only| name == only);
    let bed = Bed::make(plan)?;
    for (_, part) in PARTS.into_iter().filter(|(name, _)| wanted(name)) {
        match part(&bed) {
            Ok(report) => publish(&report, out)?,
            Err(error @ Error::Interrupted) => return Err(error),
            // One that cannot be made does not keep the others from being made.
            Err(error) => bed.say(out, &error)?,
        }
    }
    Ok(())
}
