//! READ and WRITE: cost of a byte.

use std::fs;

use super::{BARE, OURS, PEER, Table};
use crate::error::{Doing, Result};
use crate::files::Tree;
use crate::measure::Placement;
use crate::nfs::work::{Direction, Driver, Drives, READ_REPLY_BYTES, WRITE_REPLY_BYTES, driven, transfer};
use crate::nfs::{Wait, swap};
use crate::report::Figure;

const LARGE: u32 = 1 << 20;
const MEDIUM: u32 = 32 << 10;
const OUTSTANDING: u32 = 8;
const ROWS: [(&str, Direction, u32); 4] = [
    ("WRITE 1 MiB, 8 outstanding", Direction::Write, LARGE),
    ("WRITE 32 KiB, 8 outstanding", Direction::Write, MEDIUM),
    ("READ 1 MiB, 8 outstanding", Direction::Read, LARGE),
    ("READ 32 KiB, 8 outstanding", Direction::Read, MEDIUM),
];
const PLACES: [Placement; 2] = [Placement::TwoCores, Placement::Free];
/// Minimum ratio to the peer.
const TARGET: f64 = 1.5;
/// Share of a bare stream above which READ need not be better.
const OF_BARE: f64 = 0.75;
/// Target: at most 0.7 times the peer's processor time per byte written.
const CPU_TARGET: f64 = 1.43;

pub(super) fn transfers(table: &mut Table<'_>) {
    for (row, direction, piece_bytes) in ROWS {
        if table.wants(row) {
            transferred(table, row, direction, piece_bytes);
        }
    }
}

fn transferred(table: &mut Table<'_>, row: &str, direction: Direction, piece_bytes: u32) {
    let mut entrants = Vec::new();
    let mut call_bytes = None;
    for place in PLACES {
        for (column, server) in table.sides.each() {
            let file = file_of(table.tree, direction, column);
            let work = file
                .and_then(|file| transfer(server, &file, Wait::Sleep, direction, piece_bytes, OUTSTANDING));
            let work = work.map(|(work, bytes)| {
                call_bytes.get_or_insert(bytes);
                work
            });
            let (report, name) = (&mut table.report, (column, place.label()));
            report.enter(&mut entrants, row, name, work, &[server.server()], place);
        }
    }
    if let (Some(bare), Some(call_bytes)) = (&table.sides.bare, call_bytes) {
        let sizes = match direction {
            Direction::Read => (call_bytes, READ_REPLY_BYTES + piece_bytes as usize),
            Direction::Write => (call_bytes, WRITE_REPLY_BYTES),
        };
        for place in PLACES {
            let data_bytes = Some(u64::from(piece_bytes));
            let work = swap(bare.nfs(), Wait::Sleep, sizes, OUTSTANDING, data_bytes);
            let (report, name) = (&mut table.report, (BARE, place.label()));
            report.enter(&mut entrants, row, name, work, &[bare.server()], place);
        }
    }
    let series = table.report.contest(row, &table.plan.contest(), entrants);
    let cpu_row = format!("{row}: server CPU");
    let real = series.iter().filter(|series| [OURS, PEER].contains(&series.name.0.as_str()));
    let cpu: Vec<_> = real.filter_map(|series| Figure::server_cpu(&cpu_row, series)).collect();
    table.report.figures.extend(cpu);
    match direction {
        Direction::Write => table.compare_best(row, PEER, Some(TARGET)),
        Direction::Read => compare_with_lesser(table, row),
    }
    table.compare_best(row, BARE, None);
    for place in PLACES {
        let target = (direction == Direction::Write).then_some(CPU_TARGET);
        table.compare_alike(&cpu_row, PEER, place.label(), target);
    }
}

fn compare_with_lesser(table: &mut Table<'_>, row: &str) {
    table.compare_best(row, PEER, None);
    let (peer, bare) = (table.report.best(row, PEER), table.report.best(row, BARE));
    if let (Some(peer), Some(bare)) = (peer, bare) {
        let target = Figure::lesser(peer, TARGET, bare, OF_BARE);
        let ours = table.report.best(row, OURS).cloned();
        table.report.compare(ours.as_ref(), target.as_ref(), Some(1.0));
    }
}

/// Returns the file to use: shared for reading, one per column for writing.
fn file_of(tree: &Tree, direction: Direction, column: &str) -> Result<String> {
    if direction == Direction::Read {
        return Ok(Tree::large().to_string_lossy().into_owned());
    }
    let name = format!("{}/{column}.large", Tree::new_folder().display());
    let path = tree.shared().join(&name);
    if !path.exists() {
        fs::write(&path, vec![b'w'; Tree::LARGE_BYTES]).doing_to("write", &path)?;
    }
    Ok(name)
}

/// Measures with libnfs, which copies the data read.
pub(super) fn by_libnfs(table: &mut Table<'_>) {
    for (row, direction, bytes) in ROWS {
        let row = format!("libnfs: {row}");
        if !table.wants(&row) {
            continue;
        }
        let drives = match direction {
            Direction::Read => Drives::Read(bytes),
            Direction::Write => Drives::Write(bytes),
        };
        let (mut entrants, place) = (Vec::new(), Placement::TwoCores);
        for (column, server) in table.sides.each() {
            let driver = Driver::start(server, &Tree::large().to_string_lossy());
            let work = driver.map(|driver| driven(&driver, drives, OUTSTANDING));
            let (report, name) = (&mut table.report, (column, place.label()));
            report.enter(&mut entrants, &row, name, work, &[server.server()], place);
        }
        table.report.contest(&row, &table.plan.contest(), entrants);
        table.compare_best(&row, PEER, None);
    }
}
