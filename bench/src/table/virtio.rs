//! `fuse --virtio`: virtio-fs directly on the queues, Tombolo's server compared with virtiofsd, without a
//! guest.

use std::cell::RefCell;
use std::rc::Rc;

use super::Plan;
use crate::error::Result;
use crate::files::Tree;
use crate::guest::{
    Guest, SharedGuest, Wait, create_unlink, getattr, lookup, open_release, outstanding, read, write,
};
use crate::measure::{Placement, Work};
use crate::peer::{AtSocket, Program, virtio_fs};
use crate::report::Report;

/// Number of small files in the tree.
const FILES: usize = 1_000;
const LARGE: u32 = 1 << 20;
const SMALL: u32 = 4096;
/// Requests in flight in the rows that pipeline.
const WINDOW: usize = 16;

/// Rows with the target ratio to the peer.
const ROWS: [(&str, Option<f64>); 8] = [
    ("getattr", Some(2.0)),
    ("lookup", Some(2.0)),
    ("open+release", Some(2.0)),
    ("read 4 KiB", Some(2.0)),
    ("create+release+unlink", Some(2.0)),
    ("read 4 KiB, 16 under way", None),
    ("read 1 MiB", Some(1.2)),
    ("write 1 MiB", Some(1.2)),
];

/// Comparisons of ours with counterparts.
const PAIRS: [(&str, &str); 2] = [("tombolo strict", "virtiofsd never"), ("tombolo auto", "virtiofsd auto")];

/// Waiting mode of the guest, and placement. A polling guest cannot share its core.
const VARIANTS: [(&str, Wait, Placement); 3] = [
    ("guest polls, two cores", Wait::Poll, Placement::TwoCores),
    ("guest sleeps, two cores", Wait::Event, Placement::TwoCores),
    ("guest sleeps, same core", Wait::Event, Placement::SameCore),
];

pub fn run(plan: &Plan) -> Result<Report> {
    let mut report = plan.report("virtio", "virtio-fs straight on the queues");
    let tree = Tree::new(&plan.within, FILES)?;
    let mut sides = Vec::new();
    for (ours, other) in PAIRS {
        for column in [ours, other] {
            for (variant, wait, place) in VARIANTS {
                match Side::start(column, variant, wait, place, &tree) {
                    Ok(side) => sides.push(side),
                    Err(error) => report.absent(error.to_string()),
                }
            }
        }
    }
    let contest = plan.contest();
    for (row, target) in ROWS {
        let mut entrants = Vec::new();
        for side in &sides {
            let name = (side.column, side.variant);
            report.enter(&mut entrants, row, name, side.work(row), &[side.server.server()], side.place);
        }
        report.contest(row, &contest, entrants);
        for (ours, other) in PAIRS {
            for (variant, _, _) in VARIANTS {
                report.compare_cells(row, (ours, variant), (other, variant), target);
            }
        }
    }
    Placement::leave()?;
    report.condition_of(&contest);
    report.condition(format!("the directory lies in {} (its pages are in memory)", plan.within.display()));
    report.condition(
        "one request at a time unless the row says otherwise, on one request queue, with event index and indirect \
         descriptors; a transfer of 1 MiB is one descriptor; the guest is a thread of the measuring process",
    );
    report.condition(
        "both servers have looked all names up before; forgets are sent between turns and not timed",
    );
    Ok(report)
}

/// A contestant: a server and a guest.
struct Side {
    column: &'static str,
    variant: &'static str,
    place: Placement,
    // Fields drop in order: the guest before its server.
    guest: SharedGuest,
    server: AtSocket,
}

impl Side {
    fn start(
        column: &'static str,
        variant: &'static str,
        wait: Wait,
        place: Placement,
        tree: &Tree,
    ) -> Result<Self> {
        let (program, mode) = column.split_once(' ').unwrap_or((column, "auto"));
        let socket = tree.beside(&format!("{column} {variant}").replace([' ', ','], "-"));
        let server = if program == Program::Tombolo.name() {
            virtio_fs::tombolo(&tree.shared(), &socket, mode, &[])?
        } else {
            virtio_fs::virtiofsd(&tree.shared(), &socket, mode, &[])?
        };
        let guest = Rc::new(RefCell::new(Guest::connect(server.socket(), wait, WINDOW, LARGE)?));
        Ok(Self { column, variant, place, guest, server })
    }

    fn work(&self, row: &str) -> Result<Work<'static>> {
        let guest = &self.guest;
        let name = format!("{}-{}", self.column, self.variant).replace([' ', ','], "-");
        match row {
            "getattr" => getattr(guest),
            "lookup" => lookup(guest),
            "open+release" => open_release(guest),
            "create+release+unlink" => create_unlink(guest, &name),
            "read 4 KiB" => read(guest, SMALL),
            "read 1 MiB" => read(guest, LARGE),
            "write 1 MiB" => write(guest, LARGE),
            _ => outstanding(guest),
        }
    }
}
