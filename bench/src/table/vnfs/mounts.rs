//! `mounts`: repeated reads of metadata through mounts with each policy, compared with the directory itself.

use std::fs;
use std::path::{Path, PathBuf};

use super::Plan;
use super::programs::{find_newer, git_status, list_long, make_repository};
use super::sides::{Place, Side};
use super::small_tree::SmallTree;
use crate::args::VnfsArgs;
use crate::error::{Doing, Result};
use crate::measure::{Clock, Contest, Entrant, Placement, Work, go_on};
use crate::peer::Mount;
use crate::report::Report;

const LOCAL: &str = "the directory itself";
const PUSH: &str = "dir:, push";
const AUTO: &str = "dir:, auto";
const STRICT: &str = "dir:, strict";
const LINK: &str = "shm:, push";
const NFS: &str = "nfs:, strict";

const STAT: &str = "stat";
const FIND: &str = "find -newer";
const STATUS: &str = "git status";
const LIST: &str = "ls -lR";
/// Rows with targets for push: 1.15 × local, and 1.3 × local.
const ROWS: [(&str, f64); 4] = [(STAT, 0.87), (FIND, 0.769), (LIST, 0.769), (STATUS, 0.769)];
/// Minimum speed relative to NFS.
const NFS_TARGET: f64 = 5.0;

const FILES: usize = 50_000;
const QUICK_FILES: usize = 1_000;
/// Number of files examined repeatedly.
const HOT: usize = 1_000;
/// Number of files listed with all attributes.
const LISTED: usize = 20_000;
/// A round walks the tree with each policy.
const ROUNDS: usize = 7;

pub fn run(plan: &Plan, wanted: &VnfsArgs) -> Result<Report> {
    let files = plan.scaled(FILES, QUICK_FILES);
    let mut report =
        plan.report("vnfs-mounts", &format!("{files} small files through mounts, with warm caches"));
    let tree = SmallTree::new(&wanted.disk, files)?;
    let repository = make_repository(&tree.shared());
    if let Err(error) = &repository {
        report.absent(format!("{STATUS}: {error}"));
    }
    tree.date()?;
    let sides = sides(&tree, &mut report);
    let contest = Contest { rounds: plan.rounds_of(ROUNDS), ..plan.timed() };
    for (row, target) in ROWS.into_iter().filter(|(row, _)| *row != STATUS || repository.is_ok()) {
        // Programs run unpinned; our own loop has one core.
        Placement::leave()?;
        measure(&mut report, row, &contest, &sides, &tree)?;
        for push in [PUSH, LINK] {
            report.compare_cells(row, (push, ""), (LOCAL, ""), Some(target));
            report.compare_cells(row, (push, ""), (NFS, ""), Some(NFS_TARGET));
        }
        report.compare_cells(row, (PUSH, ""), (AUTO, ""), None);
        report.compare_cells(row, (PUSH, ""), (STRICT, ""), None);
    }
    Placement::leave()?;
    conditions(&mut report, &contest, files, &wanted.disk);
    Ok(report)
}

/// Measures one row, after a warm-up of every side; reports the requests to the servers of notified mounts.
fn measure(
    report: &mut Report,
    row: &str,
    contest: &Contest,
    sides: &[Side],
    tree: &SmallTree,
) -> Result<()> {
    for side in sides {
        go_on()?;
        let mut clock = Clock::new();
        // A failure is repeated and reported in its turn.
        let _reported = work(side, row, tree).run(1, &mut clock);
    }
    let told: Vec<(&str, &Mount)> = sides
        .iter()
        .filter(|side| [PUSH, LINK].contains(&side.name))
        .filter_map(|side| Some((side.name, side.mount.as_ref()?)))
        .collect();
    let before: Vec<_> = told.iter().map(|(_, mount)| mount.requests()).collect();
    let entrants = sides.iter().map(|side| entrant(side, row, tree)).collect();
    report.contest(row, contest, entrants);
    for ((name, mount), before) in told.into_iter().zip(before) {
        let found = before.and_then(|before| Ok(mount.requests()?.since(&before).text()));
        let found = found.unwrap_or_else(|error| error.to_string());
        report.target(&format!("{row}, {name}: requests in all rounds"), "counted", found, None);
    }
    Ok(())
}

fn conditions(report: &mut Report, contest: &Contest, files: usize, disk: &Path) {
    report.condition_of(contest);
    report.condition(format!(
        "{files} files of 1 KiB, 100 in a directory, below {}; every row was done once on every side before its requests are counted, \
         and then once more before its rounds. A ratio of 0.87 is \
         1.15 × local, one of 0.769 is 1.3 × local",
        disk.display()
    ));
    report.condition(format!(
        "`{STAT}`: stat(2) of {HOT} files from all over the tree, one after the other, by one thread, pinned, servers unpinned. `{FIND}`: GNU find, for \
         files newer than one that is newer than all. `{LIST}`: of the directories of {LISTED} files, which asks for the label and the access list of each. `{STATUS}`: git as it comes, of a repository of all files, without changes, in which it \
         may not write what it has found out; nothing is pinned"
    ));
    report.condition(format!(
        "`{LINK}`: the mount of a server of its own, with --host-watch; `{NFS}`: coherence=strict of our own server over loopback TCP. All \
         mounts by root for root alone"
    ));
}

/// Returns the available sides; missing ones are reported.
fn sides(tree: &SmallTree, report: &mut Report) -> Vec<Side> {
    let place = Place { shared: tree.shared(), beside: tree.beside("") };
    let mut sides = vec![place.local(LOCAL)];
    for (name, side) in [
        (PUSH, place.of_dir(PUSH, "push")),
        (AUTO, place.of_dir(AUTO, "auto")),
        (STRICT, place.of_dir(STRICT, "strict")),
        (LINK, place.over_link(LINK, "push", &["--host-watch"])),
        (NFS, place.over_nfs(NFS, "strict")),
    ] {
        match side {
            Ok(side) => sides.push(side),
            Err(error) => report.absent(format!("{name}: {error}")),
        }
    }
    sides
}

fn entrant<'a>(side: &Side, row: &str, tree: &SmallTree) -> Entrant<'a> {
    let place = (row == STAT).then_some(Placement::Free);
    Entrant::new((side.name, ""), work(side, row, tree), &side.servers(), place)
}

fn work(side: &Side, row: &str, tree: &SmallTree) -> Work<'static> {
    match row {
        FIND => find_newer(&side.root, &tree.newest()),
        STATUS => git_status(&side.root),
        LIST => list_long(&side.root, &tree.folders(LISTED)),
        _ => stat(side, tree),
    }
}

/// Calls stat(2) for all hot files per reading of the clock.
fn stat(side: &Side, tree: &SmallTree) -> Work<'static> {
    let paths: Vec<PathBuf> = tree.some(HOT).iter().map(|path| side.path(path)).collect();
    Work::repeat(paths.len() as u64, move || {
        paths.iter().try_for_each(|path| fs::metadata(path).doing_to("look at", path).map(drop))
    })
}
