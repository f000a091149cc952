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

use self::test_host::TestHost;
use super::{Part, Plan};
use crate::error::{Error, Result};
use crate::measure::Placement;
use crate::report::Report;
use crate::sheet::sheet;

const OURS: &str = "tombolo";
const BIODS: &str = "thread per request";

/// All parts in order, by name.
pub const PARTS: &[(&str, Part)] = &[
    ("table-1", |plan| part(plan, table_1::run)),
    ("table-2", |plan| part(plan, table_2::run)),
    ("figure-1", |plan| part(plan, figure_1::run)),
    ("figure-3", |plan| part(plan, figure_3::run)),
    ("figure-2", |plan| part(plan, |host| sizes::run(host, sheet!(plan, "atomic-figure-2")?))),
    ("figure-4", |plan| part(plan, |host| sizes::run(host, sheet!(plan, "atomic-figure-4")?))),
    ("figure-5", |plan| part(plan, |host| sizes::run(host, sheet!(plan, "atomic-figure-5")?))),
    ("libnfs", |plan| part(plan, libnfs::run)),
    ("copies", |plan| part(plan, copies::run)),
    ("tree", |plan| part(plan, tree::run)),
    ("build", |plan| part(plan, build::run)),
];

/// Measures a part inside the run's network namespaces. One that fails does not prevent the others.
fn part<'a>(plan: &'a Plan, run: impl FnOnce(&TestHost<'a>) -> Result<Report>) -> Result<Report> {
    // Clears earlier pinning: programs started now may run anywhere.
    Placement::leave()?;
    run(&TestHost::make(plan)?).map_err(|error| match error {
        Error::Interrupted => error,
        other => Error::Absent(other.to_string()),
    })
}
