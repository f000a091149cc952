//! FUSE mounts of one export: over a link and over NFS by TCP, both ours; and the directory itself.

use std::path::PathBuf;
use std::rc::Rc;

use super::Plan;
use crate::error::Result;
use crate::files::{ColdNames, Tree, create_write_unlink, mkdir_rmdir, open_read_close, small_files, stat};
use crate::measure::{Contest, Entrant, Placement};
use crate::peer::{Mount, Nfs, Shm};
use crate::report::Report;

const LINK: &str = "FUSE over a link";
const NFS: &str = "FUSE over NFS, TCP";
const LOCAL: &str = "the directory itself";

const SMALL_FILES: &str = "small files";
const OPEN: &str = "open+read 4 KiB+close";
const CREATE: &str = "create+write 4 KiB+unlink";
const FOLDERS: &str = "mkdir+rmdir";
const STAT: &str = "stat, name not cached";
const ROWS: [&str; 5] = [SMALL_FILES, OPEN, CREATE, FOLDERS, STAT];

/// Minimum ratio of the workload of small files to NFS.
const TARGET: f64 = 1.5;
/// Number of small files in the tree.
const FILES: usize = 1_000;

pub fn run(plan: &Plan) -> Result<Report> {
    let title = "FUSE mounts of one directory: over a link in shared memory, and over NFS by TCP";
    let mut report = plan.report("ring-mounts", title);
    let tree = Tree::new(&plan.within, plan.scaled(FILES, FILES / 10))?;
    let link = Shm::tombolo(&tree.shared(), &tree.beside("link"), &[])?;
    let nfs = Nfs::tombolo(&tree.shared(), &tree.beside(""))?;
    let over_link = Mount::of_url(&link.url(), &tree.beside("over-link"))?;
    let over_nfs = Mount::of_url(&format!("nfs://{}{}", nfs.nfs(), nfs.export()), &tree.beside("over-nfs"))?;
    let sides = [
        Side::new(LINK, over_link.point().to_owned(), vec![over_link.server(), link.server()], &tree),
        Side::new(NFS, over_nfs.point().to_owned(), vec![over_nfs.server(), nfs.server()], &tree),
        Side::new(LOCAL, tree.shared(), Vec::new(), &tree),
    ];
    let contest = Contest { count_syscalls: false, ..plan.contest() };
    for row in ROWS {
        let mut entrants = Vec::new();
        for side in &sides {
            // Without a server only the caller is placed.
            let places = if side.servers.is_empty() { &[Placement::SameCore][..] } else { &Placement::ALL };
            entrants.extend(places.iter().map(|place| side.entrant(row, *place)));
        }
        report.contest(row, &contest, entrants);
        judge(&mut report, row);
    }
    Placement::leave()?;
    report.condition_of(&contest);
    report.condition(format!("the directory lies in {} (its pages are in memory)", plan.within.display()));
    report.condition(
        "small files: a folder is made, 32 files of 4 KiB are written into it, listed, looked at, read and removed, and the folder; the figure \
         is files in a second",
    );
    report.condition(
        "mount, link and servers as they come: close-to-open, names and attributes kept for 1 s by the caller's kernel, links adaptive. The caller \
         has one thread, pinned. Mount and server are processes of their own, and share the other core (two cores), the caller's (same core), or may \
         run anywhere (server unpinned). NFS promises that what a close wrote and what a name became is on stable storage, which costs \
         little in memory",
    );
    Ok(report)
}

/// Compares the best variants, and the defaults.
fn judge(report: &mut Report, row: &str) {
    let target = (row == SMALL_FILES).then_some(TARGET);
    let free = Placement::Free.label();
    report.compare_best(row, LINK, NFS, target);
    report.compare_cells(row, (LINK, free), (NFS, free), target);
    report.compare_best(row, LINK, LOCAL, None);
}

struct Side {
    name: &'static str,
    root: PathBuf,
    servers: Vec<u32>,
    names: Rc<ColdNames>,
}

impl Side {
    fn new(name: &'static str, root: PathBuf, servers: Vec<u32>, tree: &Tree) -> Self {
        let names = ColdNames::new(&root, tree);
        Self { name, root, servers, names }
    }

    fn entrant(&self, row: &str, place: Placement) -> Entrant<'_> {
        let label = if self.servers.is_empty() { "" } else { place.label() };
        let file = self.name.replace([' ', ','], "-");
        let work = match row {
            SMALL_FILES => small_files(&self.root, &file),
            OPEN => open_read_close(&self.root),
            CREATE => create_write_unlink(&self.root, &file),
            FOLDERS => mkdir_rmdir(&self.root, &file),
            _ => stat(&self.names),
        };
        Entrant::new((self.name, label), work, &self.servers, place)
    }
}
