//! Figures 2, 4 and 5: throughput over file size, written and read, with data dropped, stored in memory, and
//! over bare TCP.

use super::test_host::{Mover, Serves, TestHost, Transfer};
use crate::drive::{Direction, Kind};
use crate::error::Result;
use crate::measure::Contest;
use crate::nfs::Link;
use crate::report::Report;
use crate::sheet::Sheet;

const SIZES_KIB: [usize; 8] = [4, 16, 64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10];
const QUICK_SIZES_KIB: [usize; 2] = [4, 1 << 10];
/// Maximum size over the slowest link, where longer files take time without further insight.
const SLOW_MAX_KIB: usize = 16 << 10;

pub(super) fn run(host: &TestHost<'_>, sheet: Sheet<'_, String, Mover>) -> Result<Report> {
    let sheet = host.described(sheet);
    let mut report = sheet.report();
    // Costs are in the tables of fixed files.
    let contest = sheet.contest(Contest { costs: false, ..host.contest() });
    for (link, direction) in Link::ALL.into_iter().flat_map(|link| DIRECTIONS.map(|it| (link, it))) {
        let sizes: &[usize] = if host.plan.quick { &QUICK_SIZES_KIB } else { &SIZES_KIB };
        for kib in sizes.iter().filter(|kib| link != Link::Gigabit || **kib <= SLOW_MAX_KIB) {
            // Reading over bare TCP returns data from memory.
            let is_wanted = |mover: &&Mover| direction.0 != Direction::Read || mover.kind != Kind::TcpToFile;
            let movers = sheet.columns.iter().filter(is_wanted);
            let movers: Vec<_> = movers.map(|it| Mover { variant: label(*kib), ..it.clone() }).collect();
            let done = host.transfer(&mut report, &contest, &transfer(link, direction, *kib), &movers);
            report.or_absent(link.label(), done.map(drop))?;
        }
    }
    Ok(sheet.finish(report))
}

const DIRECTIONS: [(Direction, &str); 2] = [(Direction::Write, "write"), (Direction::Read, "read")];

fn transfer(link: Link, (direction, name): (Direction, &str), kib: usize) -> Transfer {
    Transfer {
        name: format!("{name}, {}", link.label()),
        link,
        serves: Serves::Memory,
        direction,
        piece_kib: 256,
        file_kib: [kib; 2],
        // Few long files suffice.
        count_max: ((64 << 10) / kib).clamp(1, 10_000) as u64,
    }
}

fn label(kib: usize) -> String {
    if kib >= 1 << 10 { format!("{} MiB", kib >> 10) } else { format!("{kib} KiB") }
}
