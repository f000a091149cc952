//! `fuse --mount`: a FUSE mount of a local directory, Tombolo compared with libfuse's `passthrough_ll`, and
//! with the directory itself. `ring --only mounts`: mounts of one export over a link and over NFS, both ours.

use std::rc::Rc;

use serde::Deserialize;

use super::Plan;
use super::mounts::{Place, Side, Way};
use crate::error::Result;
use crate::files::{
    ColdNames, Tree, create_write_unlink, mkdir_rmdir, open_read_close, small_files, stat, stream_read,
    stream_write,
};
use crate::measure::{Contest, Entrant, Placement, Work};
use crate::report::Report;
use crate::sheet::{Row, Sheet, sheet};

/// Operation of a row.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Operation {
    SmallFiles,
    OpenReadClose,
    CreateWriteUnlink,
    MkdirRmdir,
    StreamRead,
    StreamWrite,
    Stat,
}

pub fn run(plan: &Plan) -> Result<Report> {
    measure(plan, plan.contest(), sheet!(plan, "mount")?)
}

/// Measures mounts over links.
pub fn over_links(plan: &Plan) -> Result<Report> {
    measure(plan, Contest { count_syscalls: false, ..plan.contest() }, sheet!(plan, "ring-mounts")?)
}

fn measure(plan: &Plan, contest: Contest, sheet: Sheet<'_, Row<Operation>, Way>) -> Result<Report> {
    let mut report = sheet.report();
    let tree = Tree::new(&plan.within, sheet.number("files"))?;
    let sides = Place { shared: tree.shared(), beside: tree.beside("") }.sides(&sheet.columns, &mut report);
    let sides: Vec<_> = sides.into_iter().map(|side| (ColdNames::new(&side.root, &tree), side)).collect();
    for row in &sheet.rows {
        let mut entrants = Vec::new();
        for (names, side) in &sides {
            let servers = side.servers();
            // Without a server only the caller is placed.
            let places: &[_] = if servers.is_empty() { &[Placement::SameCore] } else { &Placement::ALL };
            for place in places {
                let variant = if servers.is_empty() { "" } else { place.label() };
                let work = work(row.work, side, names);
                entrants.push(Entrant::new((&side.name, variant), work, &servers, *place));
            }
        }
        report.contest(&row.name, &contest, entrants);
    }
    Placement::leave()?;
    Ok(sheet.finish(report))
}

fn work(operation: Operation, side: &Side, names: &Rc<ColdNames>) -> Work<'static> {
    let (root, file) = (&side.root, side.name.replace([' ', ','], "-"));
    match operation {
        Operation::SmallFiles => small_files(root, &file),
        Operation::OpenReadClose => open_read_close(root),
        Operation::CreateWriteUnlink => create_write_unlink(root, &file),
        Operation::MkdirRmdir => mkdir_rmdir(root, &file),
        Operation::StreamRead => stream_read(root),
        Operation::StreamWrite => stream_write(root, &file),
        Operation::Stat => stat(names),
    }
}
