//! `mounts`: repeated reads of metadata through mounts with each policy, compared with the directory itself.

use std::fs;
use std::path::PathBuf;

use serde::Deserialize;

use super::Plan;
use super::programs::{find_newer, git_status, list_long, make_repository};
use super::small_tree::SmallTree;
use crate::error::{Doing, Result};
use crate::measure::{Clock, Contest, Entrant, Placement, Work, go_on};
use crate::report::Report;
use crate::sheet::{Row, Sheet, sheet};
use crate::table::mounts::{Side, Way};

/// Operation of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Walk {
    Stat,
    Find,
    List,
    Status,
}

/// Columns whose requests are counted.
const NOTIFIED: [&str; 2] = ["dir:, push", "shm:, push"];

pub fn run(plan: &Plan) -> Result<Report> {
    let sheet: Sheet<'_, Row<Walk>, Way> = sheet!(plan, "vnfs-mounts")?;
    let mut report = sheet.report();
    let tree = SmallTree::new(&plan.disk, sheet.number("files"))?;
    let repository = make_repository(&tree.shared());
    if let Err(error) = &repository {
        report.absent(format!("git status: {error}"));
    }
    tree.date()?;
    let sides = tree.place().sides(&sheet.columns, &mut report);
    let contest = sheet.contest(plan.timed());
    let (hot, listed) = (sheet.number("hot"), sheet.number("listed"));
    for row in sheet.rows.iter().filter(|row| row.work != Walk::Status || repository.is_ok()) {
        let work = |side: &Side| match row.work {
            Walk::Stat => stat(side, &tree, hot),
            Walk::Find => find_newer(&side.root, &tree.newest()),
            Walk::List => list_long(&side.root, &tree.folders(listed)),
            Walk::Status => git_status(&side.root),
        };
        // Programs run unpinned; our own loop has one core.
        Placement::leave()?;
        let place = (row.work == Walk::Stat).then_some(Placement::Free);
        measure(&mut report, &row.name, &contest, &sides, place, work)?;
    }
    Placement::leave()?;
    Ok(sheet.finish(report))
}

/// Measures one row, after a warm-up of every side; reports the requests to the servers of notified mounts.
fn measure(
    report: &mut Report,
    row: &str,
    contest: &Contest,
    sides: &[Side],
    place: Option<Placement>,
    work: impl Fn(&Side) -> Work<'static>,
) -> Result<()> {
    for side in sides {
        go_on()?;
        // A failure is repeated and reported in its turn.
        let _reported = work(side).run(1, &mut Clock::new());
    }
    let notified = sides.iter().filter(|side| NOTIFIED.contains(&side.name.as_str()));
    let before: Vec<_> = notified.map(|side| (side, side.requests())).collect();
    let entrant = |side: &Side| Entrant::new((&side.name, ""), work(side), &side.servers(), place);
    report.contest(row, contest, sides.iter().map(entrant).collect());
    for (side, before) in before {
        let found = before.and_then(|before| Ok(side.requests()?.since(&before).text()));
        let found = found.unwrap_or_else(|error| error.to_string());
        report.target(&format!("{row}, {}: requests in all rounds", side.name), "counted", found, None);
    }
    Ok(())
}

/// Calls stat(2) for `count` files from all over the tree per reading of the clock.
pub fn stat(side: &Side, tree: &SmallTree, count: usize) -> Work<'static> {
    let paths: Vec<PathBuf> = tree.some(count).iter().map(|path| side.path(path)).collect();
    Work::repeat(paths.len() as u64, move || {
        paths.iter().try_for_each(|path| fs::metadata(path).doing_to("look at", path).map(drop))
    })
}
