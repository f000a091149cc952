//! `walk`: programs that stat every file of a remote tree and read none.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::Plan;
use super::site::{Column, Site};
use super::twice::{COLD, Job, Run, WARM, conditions, measure, rounds};
use crate::args::GvfsArgs;
use crate::error::{Doing, Result};
use crate::measure::{Clock, Work};
use crate::nfs::Wait;
use crate::nfs::client::{Mounted, Page, Reply, page, readdirplus};
use crate::peer::Nfs;
use crate::report::Report;
use crate::table::vnfs::programs::{find_newer, git_status, make_repository};
use crate::table::vnfs::small_tree::SmallTree;

const FIND: &str = "find -newer";
const STATUS: &str = "git status";
const FILES: usize = 20_000;
const QUICK_FILES: usize = 200;
const ROUNDS: usize = 5;
const DAY: Duration = Duration::from_secs(86_400);
/// Cold, at most 1.5 × the transfer of one complete listing; warm, 1.3 × local.
const COLD_TARGET: f64 = 0.667;
const WARM_TARGET: f64 = 0.769;
/// Size of a listing page, in bytes.
const PAGE_BYTES: u32 = 1 << 20;

const COLUMNS: [Column; 8] = [
    Column::Local,
    Column::Bare,
    Column::Nfs,
    Column::Exclusive,
    Column::ExclusiveTree,
    Column::CloseToOpen,
    Column::Sshfs,
    Column::Rclone,
];

pub fn run(plan: &Plan, wanted: &GvfsArgs) -> Result<Report> {
    let files = plan.scaled(FILES, QUICK_FILES);
    let mut report = plan.report("gvfs-walk", &format!("stat of all {files} remote files"));
    let tree = SmallTree::new(&wanted.disk, files)?;
    let repository = repository(&tree.shared());
    if let Err(error) = &repository {
        report.absent(format!("{STATUS}: {error}"));
    }
    let listing_bytes = listing_bytes(&tree.shared(), &tree.beside(""))?;
    let site = Site::new(plan, wanted, &tree.shared(), &tree.beside(""))?;
    let rounds = rounds(plan, ROUNDS);
    let newest = dated(&tree)?;
    let find = |root: &Path| timed(find_newer(root, &newest));
    let status = |root: &Path| timed(git_status(root));
    let mut rows: Vec<(&str, &Run<'_>)> = vec![(FIND, &find)];
    if repository.is_ok() {
        rows.push((STATUS, &status));
    }
    for (row, run) in rows {
        let job = Job { rows: &[row], run, bytes: None, bare_bytes: listing_bytes };
        measure(&mut report, &site, &wanted.columns(&COLUMNS), rounds, &job)?;
        let columns = [Column::Exclusive, Column::ExclusiveTree, Column::CloseToOpen, Column::Nfs];
        for (name, is_aimed) in columns.map(Column::name).into_iter().zip([true, true, false, false]) {
            let targets = [COLD_TARGET, WARM_TARGET].map(|target| is_aimed.then_some(target));
            report.compare_cells(row, (name, COLD), (Column::Bare.name(), COLD), targets[0]);
            report.compare_cells(row, (name, WARM), (Column::Local.name(), WARM), targets[1]);
        }
    }
    conditions(&mut report, rounds, &wanted.disk);
    report.condition(format!(
        "{files} files of 1 KiB, 100 in a directory, committed to a repository in it. `{FIND}`: GNU find, for files newer than one that is newer than all. \
         `{STATUS}`: git, without changes, which may not write what it has found out; core.checkStat=minimal and core.fileMode=false, as inode numbers and modes differ between mounts. \
         `{}`: as many bytes as the READDIRPLUS replies of all directories have, {:.2} MB. A ratio of 0.667 is 1.5 × that, one of 0.769 is 1.3 × local",
        Column::Bare.name(),
        listing_bytes as f64 / 1e6
    ));
    site.describe(&mut report);
    Ok(report)
}

/// Returns a file newer than all files of the tree, including nodes without a date in the other protocol.
fn dated(tree: &SmallTree) -> Result<PathBuf> {
    tree.date()?;
    let path = tree.newest();
    let file = OpenOptions::new().write(true).open(&path);
    file.and_then(|file| file.set_modified(SystemTime::now() + DAY)).doing_to("date", &path)?;
    Ok(path)
}

/// Returns the time of one run of a program.
fn timed(mut work: Work<'_>) -> Result<Vec<Duration>> {
    let mut clock = Clock::new();
    work.run(1, &mut clock)?;
    Ok(vec![clock.total()])
}

/// Creates a repository of the tree that is valid through any mount.
fn repository(root: &Path) -> Result<()> {
    make_repository(root)?;
    let path = root.join(".git/config");
    let config = OpenOptions::new().append(true).open(&path);
    config
        .and_then(|mut file| file.write_all(b"[core]\n\tcheckStat = minimal\n\tfileMode = false\n"))
        .doing_to("write", &path)
}

/// Returns the size of all replies that list names and attributes.
fn listing_bytes(shared: &Path, beside: &Path) -> Result<u64> {
    let server = Nfs::tombolo(shared, beside)?;
    let mut mounted = Mounted::new(&server, Wait::Sleep)?;
    let (mut folders, mut bytes, mut reply) = (vec![shared.to_owned()], 0, Reply::default());
    while let Some(folder) = folders.pop() {
        let relative = folder.strip_prefix(shared).unwrap_or(&folder).to_string_lossy().into_owned();
        let handle = if relative.is_empty() { *mounted.root() } else { mounted.walk(&relative)? };
        let mut at = Page::default();
        while !at.end {
            mounted.connection().call(&mut readdirplus(&handle, &at, PAGE_BYTES), &mut reply)?;
            at = page(&reply)?;
            bytes += reply.bytes as u64;
        }
        for entry in fs::read_dir(&folder).doing_to("list", &folder)?.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(entry.path());
            }
        }
    }
    Ok(bytes)
}
