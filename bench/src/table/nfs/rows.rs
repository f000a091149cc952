//! Rows of the sheet: operations on each server, and on the servers that show the limits.

use std::fs;

use serde::Deserialize;

use super::{BARE, OURS, PEER, Table};
use crate::error::{Doing, Result};
use crate::files::Tree;
use crate::measure::{Clock, Placement, SyncCounter, Work};
use crate::nfs::work::{
    Direction, Driver, Drives, GETATTR_REPLY_BYTES, READ_REPLY_BYTES, WRITE_REPLY_BYTES, cold_list, driven,
    fill_folder, getattr, small_files, transfer, warm_list,
};
use crate::nfs::{Wait, swap};
use crate::peer::Nfs;
use crate::report::{Figure, Unit};
use crate::sheet::Named;

const FILE: &str = "d0/f0";
const LISTED: &str = "listed";
/// Size of a call if no server reports the length of its handles.
const CALL_BYTES: usize = 128;
const SYNCS: &str = "the same: fsyncs per file";
/// Number of files created while the server is traced.
const TRACED: u64 = 50;

/// Row of the sheet.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Load {
    name: String,
    work: Operation,
    /// Calls in flight.
    #[serde(default)]
    outstanding: u32,
    /// `true` for a client that costs more than our generator.
    #[serde(default)]
    by_libnfs: bool,
    /// Columns of limits.
    #[serde(default)]
    limits: Vec<String>,
    variants: Vec<Variant>,
    /// `true` if the servers' processor time is a row of its own.
    #[serde(default)]
    is_cpu_shown: bool,
}

impl Named for Load {
    fn name(&self) -> &str {
        &self.name
    }
}

/// Placement, and waiting mode of the caller.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Variant {
    /// Name, if not the placement's.
    name: Option<String>,
    place: Placement,
    #[serde(default)]
    wait: Wait,
}

impl Variant {
    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(self.place.label())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Operation {
    Getattr,
    /// Pieces of the large file, of this size.
    Read(u32),
    Write(u32),
    /// A file created, written with 4 KiB, and removed.
    SmallFiles,
    /// Directories unknown to the server.
    ListCold,
    ListWarm,
}

impl Operation {
    /// Returns the size of a reply with its mark, and the bytes of a rate.
    fn reply(self) -> (usize, Option<u64>) {
        match self {
            Self::Read(bytes) => (READ_REPLY_BYTES + bytes as usize, Some(bytes.into())),
            Self::Write(bytes) => (WRITE_REPLY_BYTES, Some(bytes.into())),
            _ => (GETATTR_REPLY_BYTES, None),
        }
    }

    fn by_libnfs(self) -> Drives {
        match self {
            Self::Read(bytes) => Drives::Read(bytes),
            Self::Write(bytes) => Drives::Write(bytes),
            _ => Drives::Getattr,
        }
    }
}

/// Measures a row, if it was selected.
pub(super) fn measure(table: &mut Table<'_>, row: &Load) -> Result<()> {
    if !table.wants(&row.name) {
        return Ok(());
    }
    if row.work == Operation::ListWarm {
        fill_folder(&table.tree.shared().join(LISTED), table.sheet.number("entries"))?;
    }
    let limits = row.limits.iter().filter_map(|limit| table.sides.limit(limit));
    let mut entrants = Vec::new();
    let mut call_bytes = CALL_BYTES;
    for (column, server) in table.sides.each().chain(limits.filter(|(column, _)| *column != BARE)) {
        let driver = match row.by_libnfs.then(|| Driver::start(server, &Tree::large().to_string_lossy())) {
            Some(Err(error)) => {
                table.report.absent(format!("{}, {column}: {error}", row.name));
                continue;
            }
            driver => driver.transpose()?,
        };
        for variant in &row.variants {
            let work = match &driver {
                Some(driver) => Ok(driven(driver, row.work.by_libnfs(), row.outstanding)),
                None => work(table, row, (column, server), variant).map(|(work, bytes)| {
                    call_bytes = bytes.unwrap_or(call_bytes);
                    work
                }),
            };
            let name = (column, variant.name());
            table.report.enter(&mut entrants, &row.name, name, work, &[server.server()], variant.place);
        }
    }
    // Exchanges of bytes of the same sizes.
    let bare = table.sides.limit(BARE).filter(|_| row.limits.iter().any(|limit| limit == BARE));
    if let Some((column, bare)) = bare {
        let (reply_bytes, data_bytes) = row.work.reply();
        for variant in &row.variants {
            let sizes = (call_bytes, reply_bytes);
            let work = swap(bare.nfs(), variant.wait, sizes, row.outstanding, data_bytes);
            let name = (column, variant.name());
            table.report.enter(&mut entrants, &row.name, name, work, &[bare.server()], variant.place);
        }
    }
    let series = table.report.contest(&row.name, &table.plan.contest(), entrants);
    let real = series.iter().filter(|it| row.is_cpu_shown && [OURS, PEER].contains(&it.name.0.as_str()));
    let cpu = real.filter_map(|series| Figure::server_cpu(&format!("{}: server CPU", row.name), series));
    table.report.figures.extend(cpu);
    if row.work == Operation::SmallFiles {
        count_syncs(table);
    }
    Ok(())
}

/// Returns the operation on one server, and the size of a call, if it matters.
fn work(
    table: &Table<'_>,
    row: &Load,
    (column, server): (&str, &Nfs),
    variant: &Variant,
) -> Result<(Work<'static>, Option<usize>)> {
    let (entries, new) = (table.sheet.number("entries"), Tree::new_folder().to_string_lossy());
    let (wait, outstanding) = (variant.wait, row.outstanding);
    let sized = |(work, bytes)| (work, Some(bytes));
    match row.work {
        Operation::Getattr => getattr(server, FILE, wait, outstanding).map(sized),
        Operation::Read(bytes) => {
            let file = Tree::large().to_string_lossy();
            transfer(server, &file, wait, Direction::Read, bytes, outstanding).map(sized)
        }
        Operation::Write(bytes) => {
            let file = format!("{new}/{column}.large");
            let path = table.tree.shared().join(&file);
            if !path.exists() {
                fs::write(&path, vec![b'w'; Tree::LARGE_BYTES]).doing_to("write", &path)?;
            }
            transfer(server, &file, wait, Direction::Write, bytes, outstanding).map(sized)
        }
        Operation::SmallFiles => {
            let name = format!("{column}-{:?}", variant.place);
            small_files(server, &new, wait, &name).map(|work| (work, None))
        }
        Operation::ListCold => {
            let (shared, name) = (table.tree.shared(), format!("{column}-cold"));
            cold_list(server, &shared, &new, wait, &name, entries).map(|work| (work, None))
        }
        Operation::ListWarm => warm_list(server, LISTED, wait, entries).map(|work| (work, None)),
    }
}

/// Counts the syncs of each server per file.
fn count_syncs(table: &mut Table<'_>) {
    let folder = Tree::new_folder().to_string_lossy();
    for (column, server) in table.sides.each() {
        let count = || {
            let mut work = small_files(server, &folder, Wait::Sleep, &format!("{column}-traced"))?;
            let counter = SyncCounter::start(server.server())?;
            work.run(TRACED, &mut Clock::new())?;
            Ok(counter.stop()? as f64 / TRACED as f64)
        };
        let counted: Result<f64> = count();
        match counted {
            Ok(count) => table.report.add(SYNCS, "", column, Unit::Count, count),
            Err(error) => table.report.absent(format!("{SYNCS}, {column}: {error}")),
        }
    }
}
