//! `atomic`: Faber's paper's tables and figures, with our client in the place of the one that it describes, beside a client with a thread
//! for each request, bare TCP and libnfs, over links of several speeds.

mod build;
mod figure_5;
mod interval;
mod libnfs;
mod table_1;
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

/// A part of it: its name, and how its report comes about.
type Part = (&'static str, fn(&TestHost<'_>) -> Result<Report>);

const PARTS: [Part; 5] = [
    ("table-1", |host| Ok(table_1::run(host))),
    ("figure-5", |host| Ok(figure_5::run(host))),
    ("libnfs", |host| Ok(libnfs::run(host))),
    ("tree", tree::run),
    ("build", build::run),
];

/// Measures, in networks of the run's own, which this process is in already. Each report is published when it is there.
pub fn run(
    plan: &Plan,
    args: &AtomicArgs,
    out: &mut dyn Write,
    mut publish: impl FnMut(&Report, &mut dyn Write) -> Result<()>,
) -> Result<()> {
    let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    let host = TestHost::make(plan)?;
    for (_, part) in PARTS.into_iter().filter(|(name, _)| wanted(name)) {
        // Whatever was pinned before: what is started now may run anywhere.
        Placement::leave()?;
        match part(&host) {
            Ok(report) => publish(&report, out)?,
            Err(error @ Error::Interrupted) => return Err(error),
            // One that cannot be made does not keep the others from being made.
            Err(error) => host.say(out, &error)?,
        }
    }
    Ok(())
}
