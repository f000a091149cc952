//! GETATTR: cost of a call.

use super::{BARE, NULL, OURS, PEER, Table};
use crate::files::Tree;
use crate::measure::{Entrant, Placement};
use crate::nfs::work::{Driver, Drives, GETATTR_REPLY_BYTES, driven, getattr};
use crate::nfs::{Wait, swap};
use crate::report::Figure;

/// Waiting mode of the caller, and placement.
type Variant = (&'static str, Wait, Placement);

const ONE: &str = "GETATTR, 1 outstanding";
const ONE_VARIANTS: [Variant; 3] = [
    ("caller sleeps, two cores", Wait::Sleep, Placement::TwoCores),
    ("caller spins, two cores", Wait::Spin, Placement::TwoCores),
    ("caller sleeps, server unpinned", Wait::Sleep, Placement::Free),
];
/// Target: at most 1.15 times the bare exchange.
const ONE_TARGET: f64 = 0.87;

const MANY: &str = "GETATTR, 32 outstanding";
const MANY_CPU: &str = "GETATTR, 32 outstanding: server CPU";
const OUTSTANDING: u32 = 32;
const MANY_VARIANTS: [Variant; 2] =
    [("two cores", Wait::Sleep, Placement::TwoCores), ("server unpinned", Wait::Sleep, Placement::Free)];
/// Aim of the throughput with many outstanding calls, as a multiple of the best peer's.
const MANY_TARGET: f64 = 1.8;
/// Target: at most 0.35 times the peer's processor time.
const CPU_TARGET: f64 = 2.86;

const LIBNFS_ONE: &str = "libnfs: GETATTR, 1 outstanding";
const LIBNFS_MANY: &str = "libnfs: GETATTR, 32 outstanding";
/// Share of libnfs's throughput against a null server.
const OF_LIBNFS: f64 = 0.9;

const FILE: &str = "d0/f0";
/// Size of a call if no server reports the length of its handles.
const CALL_BYTES: usize = 128;

/// Measures the round trip.
pub(super) fn one_outstanding(table: &mut Table<'_>) {
    if !table.wants(ONE) {
        return;
    }
    getattrs(table, ONE, &ONE_VARIANTS, 1);
    for (variant, _, place) in ONE_VARIANTS {
        table.compare_alike(ONE, BARE, variant, (place == Placement::TwoCores).then_some(ONE_TARGET));
    }
    for (variant, ..) in ONE_VARIANTS {
        table.compare_alike(ONE, PEER, variant, None);
    }
}

/// Measures a server's throughput.
pub(super) fn many_outstanding(table: &mut Table<'_>) {
    if !table.wants(MANY) {
        return;
    }
    let cpu = getattrs(table, MANY, &MANY_VARIANTS, OUTSTANDING);
    table.report.figures.extend(cpu);
    table.compare_best(MANY, PEER, Some(MANY_TARGET));
    table.compare_best(MANY, NULL, None);
    table.compare_best(MANY, BARE, None);
    for (variant, ..) in MANY_VARIANTS {
        table.compare_alike(MANY_CPU, PEER, variant, Some(CPU_TARGET));
    }
}

/// Returns the servers' processor time as figures.
fn getattrs(table: &mut Table<'_>, row: &str, variants: &[Variant], outstanding: u32) -> Vec<Figure> {
    let (report, sides) = (&mut table.report, &table.sides);
    let null = sides.null.as_ref().filter(|_| outstanding > 1).map(|null| (NULL, null));
    let mut entrants = Vec::new();
    let mut call_bytes = None;
    for &(variant, wait, place) in variants {
        for (column, server) in sides.each().chain(null) {
            let work = getattr(server, FILE, wait, outstanding).map(|(work, bytes)| {
                call_bytes.get_or_insert(bytes);
                work
            });
            report.enter(&mut entrants, row, (column, variant), work, &[server.server()], place);
        }
    }
    let sizes = (call_bytes.unwrap_or(CALL_BYTES), GETATTR_REPLY_BYTES);
    for &(variant, wait, place) in variants {
        let Some(bare) = &sides.bare else { continue };
        let work = swap(bare.nfs(), wait, sizes, outstanding, None);
        report.enter(&mut entrants, row, (BARE, variant), work, &[bare.server()], place);
    }
    let series = report.contest(row, &table.plan.contest(), entrants);
    let real = series.iter().filter(|series| [OURS, PEER].contains(&series.name.0.as_str()));
    real.filter_map(|series| Figure::server_cpu(MANY_CPU, series)).collect()
}

/// Measures with a client that costs more than our generator.
pub(super) fn by_libnfs(table: &mut Table<'_>) {
    for (row, outstanding) in [(LIBNFS_ONE, 1), (LIBNFS_MANY, OUTSTANDING)] {
        if !table.wants(row) {
            continue;
        }
        let null = table.sides.null.as_ref().map(|null| (NULL, null));
        let mut entrants = Vec::new();
        for (column, server) in table.sides.each().chain(null) {
            let driver = Driver::start(server, &Tree::large().to_string_lossy());
            let driver = driver.map_err(|error| table.report.absent(format!("{row}, {column}: {error}")));
            let Ok(driver) = driver else { continue };
            for (variant, _, place) in MANY_VARIANTS {
                let work = driven(&driver, Drives::Getattr, outstanding);
                entrants.push(Entrant::new((column, variant), work, &[server.server()], place));
            }
        }
        table.report.contest(row, &table.plan.contest(), entrants);
        table.compare_best(row, PEER, None);
        table.compare_best(row, NULL, None);
    }
    let (peer, null) = (table.report.best(LIBNFS_MANY, PEER), table.report.best(LIBNFS_MANY, NULL));
    if let (Some(peer), Some(null)) = (peer, null) {
        let target = Figure::lesser(peer, MANY_TARGET, null, OF_LIBNFS);
        let ours = table.report.best(LIBNFS_MANY, OURS).cloned();
        table.report.compare(ours.as_ref(), target.as_ref(), Some(1.0));
    }
}
