//! `fuse --mount`: a FUSE mount of a local directory, Tombolo compared with libfuse's `passthrough_ll`, and
//! with the directory itself.

use std::path::Path;
use std::rc::Rc;

use super::Plan;
use crate::error::Result;
use crate::files::{
    ColdNames, Tree, create_write_unlink, mkdir_rmdir, open_read_close, stat, stream_read, stream_write,
};
use crate::measure::{Entrant, Placement, Work};
use crate::peer::{Mount, Program};
use crate::report::Report;

/// Number of small files in the tree.
const FILES: usize = 1_000;
const LOCAL: &str = "local";

/// Rows with the target ratio to the peer's best.
const ROWS: [(&str, Option<f64>); 6] = [
    ("open+read 4 KiB+close", Some(1.8)),
    ("create+write 4 KiB+unlink", Some(1.8)),
    ("mkdir+rmdir", Some(1.8)),
    ("stream read, 1 MiB each", Some(1.0)),
    ("stream write, 1 MiB each", Some(1.0)),
    // Last, because the peer searches its nodes linearly, and this row adds many.
    ("stat, name not cached", None),
];

pub fn run(plan: &Plan) -> Result<Report> {
    let mut report = plan.report("mount", "FUSE mount of a local directory");
    let tree = Tree::new(&plan.within, FILES)?;
    let mounts: Vec<Side> = [Program::Tombolo, Program::PassthroughLl]
        .into_iter()
        .filter_map(|program| match Mount::new(program, &tree.shared(), &tree.beside(program.name())) {
            Ok(mount) => Some(Side::mounted(program, mount, &tree)),
            Err(error) => {
                report.absent(error.to_string());
                None
            }
        })
        .collect();
    let local = Side { name: LOCAL, names: ColdNames::new(&tree.shared(), &tree), mount: None };
    let contest = plan.contest();
    for (row, target) in ROWS {
        let mut entrants = Vec::new();
        for side in &mounts {
            for place in Placement::ALL {
                entrants.push(side.entrant(row, place, &tree));
            }
        }
        entrants.push(local.entrant(row, Placement::SameCore, &tree));
        report.contest(row, &contest, entrants);
        compare(&mut report, row, target);
    }
    Placement::leave()?;
    conditions(&mut report, plan);
    Ok(report)
}

/// Compares our default and our best with the peer's best, and with the local directory.
fn compare(report: &mut Report, row: &str, target: Option<f64>) {
    let (ours, theirs) = (Program::Tombolo.name(), Program::PassthroughLl.name());
    report.compare_best(row, ours, theirs, target);
    let free = report.figure(row, ours, Placement::Free.label()).cloned();
    if free.as_ref().map(|it| &it.variant) != report.best(row, ours).map(|it| &it.variant) {
        let peer = report.best(row, theirs).cloned();
        report.compare(free.as_ref(), peer.as_ref(), None);
    }
    report.compare_best(row, ours, LOCAL, None);
}

fn conditions(report: &mut Report, plan: &Plan) {
    report.condition_of(&plan.contest());
    report.condition(format!("the directory lies in {} (its pages are in memory)", plan.within.display()));
    report.condition(
        "both as they come: mounted by root for root alone, names and attributes kept for 1 s by the caller's kernel. At an \
         open the peer drops the file's pages; ours keeps them when size and times show that the file is unchanged (which \
         `open+read+close` and `stream read` profit from). `stat` asks for names that have been forgotten",
    );
    report.condition(format!(
        "the caller has one thread, pinned; a stream is one file of 64 MiB, open and close included; {FILES} small files",
    ));
}

struct Side {
    name: &'static str,
    names: Rc<ColdNames>,
    mount: Option<Mount>,
}

impl Side {
    fn mounted(program: Program, mount: Mount, tree: &Tree) -> Self {
        Self { name: program.name(), names: ColdNames::new(mount.point(), tree), mount: Some(mount) }
    }

    fn entrant<'a>(&'a self, row: &str, place: Placement, tree: &Tree) -> Entrant<'a> {
        let shared = tree.shared();
        let root = self.mount.as_ref().map_or(shared.as_path(), Mount::point);
        let variant = self.mount.as_ref().map_or("", |_| place.label());
        let servers: Vec<u32> = self.mount.as_ref().map(Mount::server).into_iter().collect();
        Entrant::new((self.name, variant), self.work(row, root), &servers, place)
    }

    fn work(&self, row: &str, root: &Path) -> Work<'static> {
        match row {
            "open+read 4 KiB+close" => open_read_close(root),
            "create+write 4 KiB+unlink" => create_write_unlink(root, self.name),
            "mkdir+rmdir" => mkdir_rmdir(root, self.name),
            "stream read, 1 MiB each" => stream_read(root),
            "stream write, 1 MiB each" => stream_write(root, self.name),
            _ => stat(&self.names),
        }
    }
}
