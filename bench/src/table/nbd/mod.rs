//! `nbd`: a disk over NBD, Tombolo compared with nbdkit, over a UNIX socket.

mod client;

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use tempfile::TempDir;

use client::NbdClient;

use super::disk::{LARGE, SMALL, fill};
use super::{Plan, folder};
use crate::error::Result;
use crate::guest::{DiskRequests as Requests, Way};
use crate::measure::Placement;
use crate::peer::{AtSocket, Program, nbd};
use crate::report::Report;

/// Rows with the target ratio to the peer.
const ROWS: [(&str, Requests, f64); 4] = [
    ("read 4 KiB, 32 under way", Requests { way: Way::Read, bytes: SMALL, depth: 32 }, 1.5),
    ("write 4 KiB, 32 under way", Requests { way: Way::Write, bytes: SMALL, depth: 32 }, 1.5),
    ("read 1 MiB, 8 under way", Requests { way: Way::Read, bytes: LARGE, depth: 8 }, 1.2),
    ("write 1 MiB, 8 under way", Requests { way: Way::Write, bytes: LARGE, depth: 8 }, 1.2),
];

const COLUMNS: [Program; 2] = [Program::Tombolo, Program::Nbdkit];

/// Measures the table. `disk` is a directory on a disk.
pub fn run(plan: &Plan, disk: &Path) -> Result<Report> {
    let mut report = plan.report("nbd", "a disk over NBD and a unix socket");
    let disk_bytes = if plan.quick { 8 << 20 } else { 256 << 20 };
    let mut sides = Vec::new();
    for column in COLUMNS {
        match Side::start(column, disk, disk_bytes) {
            Ok(side) => sides.push(side),
            Err(error) => report.absent(error.to_string()),
        }
    }
    let contest = plan.contest();
    for (row, requests, target) in ROWS {
        let mut entrants = Vec::new();
        for side in &sides {
            let work = NbdClient::work(&side.client, requests);
            report.enter(
                &mut entrants,
                row,
                (side.column.name(), ""),
                Ok(work),
                &[side.server.server()],
                None,
            );
        }
        report.contest(row, &contest, entrants);
        let [ours, other] = COLUMNS.map(Program::name);
        report.compare_cells(row, (ours, ""), (other, ""), Some(target));
    }
    Placement::leave()?;
    report.condition_of(&contest);
    report.condition(format!(
        "raw images of {} MiB in {}, in memory; places follow each other; nothing is pinned; simple replies; the client is one thread that \
         sends and receives what there is by one call each",
        disk_bytes >> 20,
        disk.display()
    ));
    Ok(report)
}

/// A contestant: a server with its own image, and a client.
struct Side {
    column: Program,
    // Fields drop in order: the client before its server.
    client: Rc<RefCell<NbdClient>>,
    server: AtSocket,
    _place: TempDir,
}

impl Side {
    fn start(column: Program, disk: &Path, disk_bytes: u64) -> Result<Self> {
        let place = folder(disk)?;
        let (image, socket) = (place.path().join(nbd::EXPORT), place.path().join("sock"));
        fill(&image, disk_bytes)?;
        let server = match column {
            Program::Tombolo => nbd::tombolo(&image, &socket)?,
            _ => nbd::nbdkit(&image, &socket)?,
        };
        let client = NbdClient::connect(server.socket(), nbd::EXPORT, LARGE)?;
        Ok(Self { column, client, server, _place: place })
    }
}
