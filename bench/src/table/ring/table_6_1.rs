//! Null requests of the FSVA paper's Table 6.1, by waiting mode, compared with the paper's figures.

use tombolo_shm::doorbell::Mode;

use super::endpoint::Endpoint;
use super::session::{Operation, linked};
use super::{Plan, servers, speed};
use crate::error::Result;
use crate::measure::{Entrant, Placement};
use crate::report::Report;
use crate::sheet::{Sheet, sheet};

/// Placement and mode of each row.
const ROWS: [(Placement, Mode); 4] = [
    (Placement::SameCore, Mode::Event),
    (Placement::TwoCores, Mode::Event),
    (Placement::TwoCores, Mode::Poll),
    (Placement::TwoCores, Mode::Adaptive),
];

pub fn run(plan: &Plan) -> Result<Report> {
    let sheet: Sheet<'_> = sheet!(plan, "ring-table-6.1")?;
    let mut report = sheet.report();
    let folder = plan.folder()?;
    let (shared, _) = speed::lay_out(folder.path())?;
    let servers = servers(&shared, folder.path())?;
    let mut entrants = Vec::new();
    for (row, (place, mode)) in sheet.rows.iter().zip(ROWS) {
        for (_, server) in servers.iter().filter(|(other, _)| *other == mode) {
            let work = linked(Endpoint::of(server, mode), Operation::Null);
            entrants.push(Entrant::new((row, "here"), work, &[server.server()], place));
        }
    }
    report.contest_of_rows(&plan.timed(), entrants);
    Placement::leave()?;
    Ok(sheet.finish(report))
}
