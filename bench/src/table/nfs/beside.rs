//! Latency of other clients while one lists a large directory.

use super::Table;
use crate::error::Result;
use crate::measure::{Contest, Placement};
use crate::nfs::Wait;
use crate::nfs::work::{Lister, beside, fill_folder, getattr};
use crate::report::Figure;

const ROW: &str = "GETATTR, 99 of 100";
const DIRECTORY: &str = "huge";
const FILE: &str = "d0/f0";
const IDLE: &str = "idle";
const BESIDE: &str = "a long directory being listed";
/// Factor of the turn's length, since a 99th percentile needs many operations.
const LONGER: u32 = 5;

pub(super) fn a_long_listing(table: &mut Table<'_>) -> Result<()> {
    if !table.wants(ROW) {
        return Ok(());
    }
    let entries = table.sheet.number("long");
    fill_folder(&table.tree.shared().join(DIRECTORY), entries)?;
    let mut entrants = Vec::new();
    for (column, server) in table.sides.each() {
        let alone = || getattr(server, FILE, Wait::Sleep, 1).map(|(work, _)| work);
        let listed = Lister::new(server, DIRECTORY, entries).and_then(|lister| Ok(beside(alone()?, lister)));
        for (variant, work) in [(IDLE, alone()), (BESIDE, listed)] {
            let (report, servers) = (&mut table.report, [server.server()]);
            report.enter(&mut entrants, ROW, (column, variant), work, &servers, Placement::Free);
        }
    }
    let contest = table.plan.contest();
    let contest = Contest { turn: contest.turn * LONGER, count_syscalls: false, ..contest };
    let (series, dropped) = contest.run(entrants);
    table.report.take(ROW, &[], &dropped);
    table.report.figures.extend(series.iter().filter_map(|series| Figure::p99(ROW, series)));
    table.sheet.set("turn_ms", &contest.turn.as_millis());
    Ok(())
}
