//! `atomic`: tables and figures of Faber's paper for our client, compared with a client with a thread per
//! request, bare TCP and libnfs, over links of several speeds.

mod build;
mod copies;
mod figure_1;
mod figure_3;
mod interval;
mod libnfs;
mod sizes;
mod table_1;
mod table_2;
mod test_host;
mod tree;

use std::io::Write;

use self::test_host::TestHost;
use super::Plan;
use crate::args::AtomicArgs;
use crate::error::{Error, Result};
use crate::measure::Placement;
use crate::report::Report;

const OURS: &str = "tombolo";
const BIODS: &str = "thread per request";
/// Column of the paper's results, on machines of its time.
const PAPER: &str = "paper";

/// A part of the table: names and function.
type Part = (&'static [&'static str], fn(&TestHost<'_>) -> Result<Vec<Report>>);

const PARTS: [Part; 9] = [
    (&["table-1"], |host| Ok(vec![table_1::run(host)])),
    (&["table-2"], |host| Ok(vec![table_2::run(host)])),
    (&["figure-1"], |host| Ok(vec![figure_1::run(host)])),
    (&["figure-3"], |host| Ok(vec![figure_3::run(host)])),
    (&["figure-2", "figure-4", "figure-5"], |host| Ok(sizes::run(host))),
    (&["libnfs"], |host| Ok(vec![libnfs::run(host)])),
    (&["copies"], |host| Ok(vec![copies::run(host)])),
    (&["tree"], |host| Ok(vec![tree::run(host)?])),
    (&["build"], |host| Ok(vec![build::run(host)?])),
];

/// Measures inside the run's network namespaces. Each report is published when it is complete.
pub fn run(
    plan: &Plan,
    args: &AtomicArgs,
    out: &mut dyn Write,
    mut publish: impl FnMut(&Report, &mut dyn Write) -> Result<()>,
) -> Result<()> {
    let wanted =
        |names: &[&str]| args.only.is_empty() || args.only.iter().any(|only| names.contains(&only.as_str()));
    let host = TestHost::make(plan, &args.disk)?;
    for (_, part) in PARTS.into_iter().filter(|(names, _)| wanted(names)) {
        // Clears earlier pinning: programs started now may run anywhere.
        Placement::leave()?;
        match part(&host) {
            Ok(reports) => reports.iter().try_for_each(|report| publish(report, out))?,
            Err(error @ Error::Interrupted) => return Err(error),
            // A part that fails does not prevent the others.
            Err(error) => host.say(out, &error)?,
        }
    }
    Ok(())
}
