//! `atomic`: Faber's paper's tables and figures, with our client in the place of the one that it describes,
//! beside a client with a thread for each request, bare TCP and libnfs, over links of several speeds.

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
/// What the paper found, on machines of its time.
const PAPER: &str = "paper";

/// A part of it: the names of what it makes, and how its reports come about.
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

/// Measures, in networks of the run's own, which this process is in already. Each report is published when it
/// is there.
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
        // Whatever was pinned before: what is started now may run anywhere.
        Placement::leave()?;
        match part(&host) {
            Ok(reports) => reports.iter().try_for_each(|report| publish(report, out))?,
            Err(error @ Error::Interrupted) => return Err(error),
            // One that cannot be made does not keep the others from being made.
            Err(error) => host.say(out, &error)?,
        }
    }
    Ok(())
}
