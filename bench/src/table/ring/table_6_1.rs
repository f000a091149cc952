//! Null requests of the FSVA paper's Table 6.1, by waiting mode, compared with the paper's figures.

use tombolo_shm::doorbell::Mode;

use super::server::{EndpointKind, LinkServer};
use super::session::{Operation, linked};
use super::{AT_ONCE, Plan, speed};
use crate::error::Result;
use crate::measure::{Entrant, Placement};
use crate::report::{Figure, Report, Unit};

const HERE: &str = "here";
const PAPER: &str = "paper";

/// Row, placement, mode, and the paper's figure in microseconds.
const ROWS: [(&str, Placement, Mode, f64); 4] = [
    ("null request, same core, event", Placement::SameCore, Mode::Event, 16.70),
    ("null request, two cores, event", Placement::TwoCores, Mode::Event, 21.21),
    ("null request, two cores, poll", Placement::TwoCores, Mode::Poll, 4.04),
    ("null request, two cores, adaptive (the paper's: mwait)", Placement::TwoCores, Mode::Adaptive, 4.34),
];

pub fn run(plan: &Plan) -> Result<Report> {
    let title = "Table 6.1 of the FSVA paper: what a null request costs";
    let mut report = plan.report("ring-table-6.1", title);
    let folder = plan.folder()?;
    let (shared, _) = speed::lay_out(folder.path())?;
    let server = LinkServer::start(&shared, folder.path(), EndpointKind::Sockets)?;
    let contest = plan.timed();
    let entrants = ROWS.into_iter().map(|(row, place, mode, _)| {
        Entrant::new((row, HERE), linked(server.endpoint(mode), Operation::Null), &[server.id()], place)
    });
    report.contest_of_rows(&contest, entrants.collect());
    Placement::leave()?;
    for (row, .., us) in ROWS {
        let paper = Figure::single(row, "", PAPER, Unit::Nanoseconds, us * 1e3);
        report.figures.push(paper);
        report.compare_cells(row, (HERE, ""), (PAPER, ""), None);
    }
    report.condition_of(&contest);
    report.condition(format!(
        "through the library, both sides wait alike; {AT_ONCE} operations between two looks at the clock. The paper (2010) measured two virtual \
         machines under Xen, on a 1.86 GHz Xeon E5320: its figures are printed, not measured. Ours are two processes of one kernel, whose \
         requests and answers are one cache line each; the paper's had 512 bytes"
    ));
    Ok(report)
}
