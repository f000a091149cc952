//! `walk`: programs that stat every file of a remote tree and read none.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::Deserialize;

use super::Plan;
use super::site::{Column, Site};
use super::twice::{Job, describe, measure};
use crate::error::{Doing, Result};
use crate::measure::{Clock, Work};
use crate::nfs::Wait;
use crate::nfs::client::{Mounted, Page, Reply, page, readdirplus};
use crate::peer::Nfs;
use crate::report::Report;
use crate::sheet::{Row, Sheet, sheet};
use crate::table::vnfs::programs::{find_newer, git_status, make_repository};
use crate::table::vnfs::small_tree::SmallTree;

const DAY: Duration = Duration::from_secs(86_400);
/// Size of a listing page, in bytes.
const PAGE_BYTES: u32 = 1 << 20;

pub fn run(plan: &Plan) -> Result<Report> {
    let mut sheet: Sheet<'_, Row<Walk>, Column> = sheet!(plan, "gvfs-walk")?;
    let mut report = sheet.report();
    let tree = SmallTree::new(&plan.disk, sheet.number("files"))?;
    let repository = repository(&tree.shared());
    if let Err(error) = &repository {
        report.absent(format!("git status: {error}"));
    }
    let listing_bytes = listing_bytes(&tree.shared(), &tree.beside(""))?;
    describe(&mut sheet);
    sheet.set("listing_mb", &format!("{:.2}", listing_bytes as f64 / 1e6));
    let site = Site::new(plan, &tree.shared(), &tree.beside(""))?;
    let (newest, columns) = (dated(&tree)?, plan.columns(&sheet.columns, Column::id)?);
    for Row { name, work } in sheet.rows.iter().filter(|row| row.work != Walk::Status || repository.is_ok()) {
        let run = |root: &Path| match work {
            Walk::Find => timed(find_newer(root, &newest)),
            Walk::Status => timed(git_status(root)),
        };
        let job = Job { rows: &[name], run: &run, bytes: None, bare_bytes: listing_bytes };
        measure(&mut report, &site, &columns, sheet.rounds(), &job)?;
    }
    Ok(site.described(sheet.finish(report)))
}

/// Operation of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Walk {
    Find,
    Status,
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
