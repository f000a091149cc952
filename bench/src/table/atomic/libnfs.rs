//! Comparison with libnfs's raw calls, with as many requests in flight.

use super::OURS;
use super::test_host::{Serves, TestHost, Transfer, WRITTEN, add_costs};
use crate::drive::{Direction, Kind};
use crate::error::Result;
use crate::measure::Placement;
use crate::nfs::Link;
use crate::nfs::work::{Driver, moves, moves_by_libnfs};
use crate::report::Report;
use crate::sheet::{Sheet, sheet};

const LIMIT: u32 = 8;

pub(super) fn run(host: &TestHost<'_>) -> Result<Report> {
    let sheet: Sheet<'_, Transfer> = host.described(sheet!(host.plan, "atomic-libnfs")?);
    let mut report = sheet.report();
    let server = host.server(Link::Loopback, Serves::Memory)?;
    for transfer in &sheet.rows {
        let (row, job, mut entrants) = (&transfer.name, host.job(transfer, LIMIT), Vec::new());
        host.lay_out(transfer.serves, &job)?;
        let file = if job.direction == Direction::Read { job.read_name() } else { WRITTEN.to_owned() };
        let ours = Driver::of_kind(Kind::Tombolo, &server, WRITTEN);
        let ours = ours.map(|driver| moves(driver, job, transfer.count_max));
        let libnfs = Driver::libnfs(&server, &file);
        let libnfs = libnfs.map(|driver| moves_by_libnfs(driver, job, transfer.count_max));
        for (column, work) in [(OURS, ours), ("libnfs", libnfs)] {
            report.enter(&mut entrants, row, (column, ""), work, &[server.server()], Placement::TwoCores);
        }
        let series = report.contest(row, &sheet.contest(host.contest()), entrants);
        let cpu = format!("{row}: processor time");
        add_costs(&mut report, &series, &format!("{row}: context switches"), Some(&cpu));
    }
    Ok(sheet.finish(report))
}
