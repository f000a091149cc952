//! `mounts`: what is looked at again and again through mounts with each policy, beside the directory itself.

use std::fs;
use std::path::{Path, PathBuf};

use super::Plan;
use super::programs::{find_newer, git_status, make_repository};
use super::small_tree::SmallTree;
use crate::error::{Doing, Result};
use crate::measure::{Clock, Contest, Entrant, Placement, Work};
use crate::peer::{Mount, Nfs, Shm};
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
/// What a row may take through push: 1.15 × local, and 1.3 × local.
const ROWS: [(&str, f64); 3] = [(STAT, 0.87), (FIND, 0.769), (STATUS, 0.769)];
/// How much faster than over NFS.
const NFS_TARGET: f64 = 5.0;

const FILES: usize = 50_000;
const QUICK_FILES: usize = 1_000;
/// Files that are looked at over and over.
const HOT: usize = 1_000;
/// A round goes through the tree with each policy.
const ROUNDS: usize = 7;

pub fn run(plan: &Plan, disk: &Path) -> Result<Report> {
    let files = plan.scaled(FILES, QUICK_FILES);
    let mut report =
        plan.report("vnfs-mounts", &format!("{files} small files through mounts, all of it seen before"));
    let tree = SmallTree::new(disk, files)?;
    let repository = make_repository(&tree.shared());
    if let Err(error) = &repository {
        report.absent(format!("{STATUS}: {error}"));
    }
    tree.date()?;
    let sides = sides(&tree, &mut report);
    let contest = Contest { rounds: plan.rounds_of(ROUNDS), ..plan.timed() };
    for (row, target) in ROWS.into_iter().filter(|(row, _)| *row != STATUS || repository.is_ok()) {
        // Programs run where they like; a loop of ours has one core.
        Placement::leave()?;
        measure(&mut report, row, &contest, &sides, &tree);
        for push in [PUSH, LINK] {
            report.compare_cells(row, (push, ""), (LOCAL, ""), Some(target));
            report.compare_cells(row, (push, ""), (NFS, ""), Some(NFS_TARGET));
        }
        report.compare_cells(row, (PUSH, ""), (AUTO, ""), None);
        report.compare_cells(row, (PUSH, ""), (STRICT, ""), None);
    }
    Placement::leave()?;
    conditions(&mut report, &contest, files, disk);
    Ok(report)
}

/// One row, after it was done once on every side; with the requests that reached the servers of those mounts that are told of changes.
fn measure(report: &mut Report, row: &str, contest: &Contest, sides: &[Side], tree: &SmallTree) {
    for side in sides {
        let mut clock = Clock::new();
        // One that fails here fails again in its turn, and is reported then.
        let _reported = side.work(row, tree).run(1, &mut clock);
    }
    let told: Vec<&Mount> =
        sides.iter().filter(|side| side.is_told()).filter_map(|side| side.mount.as_ref()).collect();
    let before: Vec<_> = told.iter().map(|mount| mount.requests()).collect();
    let entrants = sides.iter().map(|side| side.entrant(row, tree)).collect();
    report.contest(row, contest, entrants);
    for ((side, mount), before) in sides.iter().filter(|side| side.is_told()).zip(told).zip(before) {
        let found = before.and_then(|before| Ok(mount.requests()?.since(&before).text()));
        let found = found.unwrap_or_else(|error| error.to_string());
        report.target(&format!("{row}, {}: requests in all rounds", side.name), "counted", found, None);
    }
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
         files newer than one that is newer than all. `{STATUS}`: git as it comes, of a repository of all files, without changes, in which it \
         may not write what it has found out; nothing is pinned"
    ));
    report.condition(format!(
        "`{LINK}`: the mount of a server of its own, with --host-watch; `{NFS}`: coherence=strict of our own server over loopback TCP. All \
         mounts by root for root alone"
    ));
}

/// The sides that can be had here; why another cannot goes to the report.
fn sides(tree: &SmallTree, report: &mut Report) -> Vec<Side> {
    let dir = format!("dir:{}", tree.shared().display());
    let of_dir = |name, policy| Side::mounted(name, tree, &dir, policy, Behind::Nothing);
    let mut sides = vec![Side { name: LOCAL, root: tree.shared(), mount: None, _behind: Behind::Nothing }];
    for (name, side) in [
        (PUSH, of_dir(PUSH, "push")),
        (AUTO, of_dir(AUTO, "auto")),
        (STRICT, of_dir(STRICT, "strict")),
        (LINK, over_link(tree)),
        (NFS, over_nfs(tree)),
    ] {
        match side {
            Ok(side) => sides.push(side),
            Err(error) => report.absent(format!("{name}: {error}")),
        }
    }
    sides
}

fn over_link(tree: &SmallTree) -> Result<Side> {
    let server = Shm::tombolo(&tree.shared(), &tree.beside("link"), &["--host-watch"])?;
    Side::mounted(LINK, tree, &server.url(), "push", Behind::Shm(server))
}

fn over_nfs(tree: &SmallTree) -> Result<Side> {
    let server = Nfs::tombolo(&tree.shared(), &tree.beside(""))?;
    let url = format!("nfs://{}{}", server.nfs(), server.export());
    Side::mounted(NFS, tree, &url, "strict", Behind::Nfs(server))
}

struct Side {
    name: &'static str,
    root: PathBuf,
    mount: Option<Mount>,
    // Dropped after the mount.
    _behind: Behind,
}

/// The server that a mount is a client of.
enum Behind {
    Nothing,
    Shm(#[expect(dead_code, reason = "kept")] Shm),
    Nfs(#[expect(dead_code, reason = "kept")] Nfs),
}

impl Side {
    fn mounted(
        name: &'static str,
        tree: &SmallTree,
        url: &str,
        policy: &str,
        behind: Behind,
    ) -> Result<Self> {
        let point = tree.beside(&name.replace(": ", "-").replace([':', ',', ' '], "-"));
        let mount = Mount::with(url, &format!("coherence={policy}"), &point)?;
        Ok(Self { name, root: point, mount: Some(mount), _behind: behind })
    }

    /// Whether its mount is told of changes.
    fn is_told(&self) -> bool {
        [PUSH, LINK].contains(&self.name)
    }

    fn entrant(&self, row: &str, tree: &SmallTree) -> Entrant<'_> {
        let place = (row == STAT).then_some(Placement::Free);
        let servers: Vec<u32> = self.mount.iter().map(Mount::server).collect();
        Entrant::new((self.name, ""), self.work(row, tree), &servers, place)
    }

    fn work(&self, row: &str, tree: &SmallTree) -> Work<'static> {
        match row {
            FIND => find_newer(&self.root, &tree.newest()),
            STATUS => git_status(&self.root),
            _ => stat(&self.root, tree),
        }
    }
}

/// stat(2) of files that were looked at before, all of them between two looks at the clock.
fn stat(root: &Path, tree: &SmallTree) -> Work<'static> {
    let paths: Vec<PathBuf> = tree.some(HOT).iter().map(|path| root.join(path)).collect();
    Work::repeat(paths.len() as u64, move || {
        paths.iter().try_for_each(|path| fs::metadata(path).doing_to("look at", path).map(drop))
    })
}
