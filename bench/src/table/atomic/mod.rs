//! `atomic`: Faber's paper's tables and figures, with our client in the place of the one that it describes, beside a client with a thread
//! for each request, bare TCP and libnfs, over links of several speeds.

mod bed;
mod build;
mod copies;
mod figure_1;
mod figure_3;
mod interval;
mod libnfs;
mod sizes;
mod table_1;
mod table_2;
mod tree;

use std::io::Write;

use self::bed::Bed;
use super::Plan;
use crate::args::AtomicArgs;
use crate::error::{Error, Result};
use crate::measure::Place;
use crate::report::Report;

const OURS: &str = "tombolo";
const BIODS: &str = "thread per request";
/// What the paper found, on machines of its time.
const PAPER: &str = "paper";

/// A part of it: the names of what it makes, and how its reports come about.
type Part = (&'static [&'static str], fn(&Bed<'_>) -> Result<Vec<Report>>);

const PARTS: [Part; 9] = [
    (&["table-1"], |bed| Ok(vec![table_1::run(bed)])),
    (&["table-2"], |bed| Ok(vec![table_2::run(bed)])),
    (&["figure-1"], |bed| Ok(vec![figure_1::run(bed)])),
    (&["figure-3"], |bed| Ok(vec![figure_3::run(bed)])),
    (&["figure-2", "figure-4", "figure-5"], |bed| Ok(sizes::run(bed))),
    (&["libnfs"], |bed| Ok(vec![libnfs::run(bed)])),
    (&["copies"], |bed| Ok(vec![copies::run(bed)])),
    (&["tree"], |bed| Ok(vec![tree::run(bed)?])),
    (&["build"], |bed| Ok(vec![build::run(bed)?])),
];

/// Measures, in networks of the run's own, which this process is in already. Each report is published when it is there.
pub fn run(
    plan: &Plan,
    args: &AtomicArgs,
    out: &mut dyn Write,
    mut publish: impl FnMut(&Report, &mut dyn Write) -> Result<()>,
) -> Result<()> {
    let wanted =
        |names: &[&str]| args.only.is_empty() || args.only.iter().any(|only| names.contains(&only.as_str()));
    let bed = Bed::make(plan, &args.disk)?;
    for (_, part) in PARTS.into_iter().filter(|(names, _)| wanted(names)) {
        // Whatever was pinned before: what is started now may run anywhere.
        Place::leave()?;
        match part(&bed) {
            Ok(reports) => reports.iter().try_for_each(|report| publish(report, out))?,
            Err(error @ Error::Interrupted) => return Err(error),
            // One that cannot be made does not keep the others from being made.
            Err(error) => bed.say(out, &error)?,
        }
    }
    Ok(())
}
