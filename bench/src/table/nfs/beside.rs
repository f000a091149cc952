//! Latency of other clients while one lists a large directory.

use super::{OURS, Table};
use crate::error::Result;
use crate::measure::{Contest, Placement};
use crate::nfs::Wait;
use crate::nfs::work::{Lister, beside, fill, getattr};
use crate::report::Figure;

const ROW: &str = "GETATTR, 99 of 100";
const ENTRIES: usize = 600_000;
const QUICK_ENTRIES: usize = 3_000;
const DIRECTORY: &str = "huge";
const FILE: &str = "d0/f0";
const IDLE: &str = "idle";
const BESIDE: &str = "a long directory being listed";
/// Target: at most twice the time of an idle server.
const TARGET: f64 = 0.5;
/// Factor of the turn's length, since a 99th percentile needs many operations.
const LONGER: u32 = 5;

pub(super) fn a_long_listing(table: &mut Table<'_>) -> Result<()> {
    if !table.wants(ROW) {
        return Ok(());
    }
    let entries = table.plan.scaled(ENTRIES, QUICK_ENTRIES);
    fill(&table.tree.shared().join(DIRECTORY), entries)?;
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
    for (column, _) in table.sides.each() {
        let target = (column == OURS).then_some(TARGET);
        table.report.compare_cells(ROW, (column, BESIDE), (column, IDLE), target);
    }
    table.report.condition(format!(
        "`{ROW}`: one outstanding; the directory being listed has {entries} entries and is read with READDIRPLUS by another connection, from end \
         to end and again, by a thread on the caller's core that looks at nothing. Turns of {} ms",
        contest.turn.as_millis()
    ));
    Ok(())
}
