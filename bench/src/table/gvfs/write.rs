//! `write`: changes of a remote tree: unpacking of sources, a large file, and removal of everything.

use std::path::Path;

use super::Plan;
use super::build::Source;
use super::site::{Column, Site, folder};
use super::stream::fill;
use super::twice::{Job, describe, measure};
use crate::error::Result;
use crate::files::{Steps, source};
use crate::report::Report;
use crate::sheet::{Sheet, sheet};

/// Steps: only the large file is synced.
const STEPS: [(&str, &str); 3] = [
    ("unpack", "tar -xzf \"$1\""),
    ("write a large file", "cp \"$2\" large && sync large"),
    ("remove", "rm -rf -- *"),
];

pub fn run(plan: &Plan) -> Result<Report> {
    let mut sheet: Sheet<'_, String, Column> = sheet!(plan, "gvfs-write")?;
    let project = if plan.quick { Source::Lua } else { plan.source };
    describe(&mut sheet);
    sheet.set("project", &project.name());
    let mut report = sheet.report();
    let (folder, shared) = folder(plan)?;
    let site = Site::new(plan, &shared, folder.path())?;
    let (tarball, given) = (source(project.name())?, folder.path().join("given"));
    fill(&given, sheet.number("pieces"))?;
    let steps = Steps { steps: &STEPS, arguments: vec![tarball.into(), given.into()] };
    // Each time in a separate directory of the tree.
    let work = |root: &Path| steps.timed(&root.join("work"));
    let job = Job { rows: &STEPS.map(|(name, _)| name), run: &work, bytes: None, bare_bytes: 0 };
    measure(&mut report, &site, &plan.columns(&sheet.columns, Column::id)?, sheet.rounds(), &job)?;
    Ok(site.described(sheet.finish(report)))
}
