//! `nfs`: the NFS server compared with nfs-ganesha over loopback TCP, by a load generator of our own and by
//! libnfs, and with the costs of network and callers alone.

use std::cell::RefCell;
use std::fs;
use std::mem;
use std::time::Duration;

use serde::Deserialize;

use crate::drive::Direction;
use crate::error::{Doing, Error, Result};
use crate::files::Tree;
use crate::measure::{Clock, Contest, Held, Placement, SyncCounter, Work};
use crate::nfs::client::{Mounted, read};
use crate::nfs::work::{
    Crowd, GETATTR_REPLY_BYTES, Lister, READ_REPLY_BYTES, WRITE_REPLY_BYTES, beside, cold_list, driven,
    fill_folder, getattrs, small_files, transfer, warm_list,
};
use crate::nfs::{Limit, Link, Wait, swap};
use crate::peer::Nfs;
use crate::report::{Figure, Report, Unit};
use crate::sheet::{Named, Sheet, measured, sheet};
use crate::table::Plan;
use crate::table::memory::against_aim;

const OURS: &str = "tombolo";
const PEER: &str = "nfs-ganesha";
/// Exchange of bytes of the same sizes as calls and replies.
const BARE: &str = "bare TCP";
/// Server with constant replies.
const NULL: &str = "null responder";
/// Number of small files in the tree.
const FILES: usize = 1_000;

/// Measures the rows that begin with a selected prefix; all, if there are none. `no_peer` is the reason to
/// omit the peer, where it would conflict with the host's rpcbind.
pub fn run(plan: &Plan, no_peer: Option<&str>) -> Result<Report> {
    measured(sheet!(plan, "nfs")?, |sheet, report| {
        let tree = Tree::new(&plan.within, FILES)?;
        let sides = Sides::start(&tree, no_peer, report);
        let rows = mem::take(&mut sheet.rows);
        let mut table = Table { plan, asked: RefCell::default(), tree: &tree, sides, sheet, report };
        rows.iter().try_for_each(|row| measure(&mut table, row))?;
        a_long_listing(&mut table)?;
        after_many_files(&mut table, no_peer)?;
        with_many_clients(&mut table)?;
        unknown_row(&plan.only, &table.asked.borrow())?;
        sheet.rows = rows;
        Ok(())
    })
}

/// Fails if a prefix matches none of the `rows`.
fn unknown_row(only: &[String], rows: &[String]) -> Result<()> {
    let is_unknown = |beginning: &&String| rows.iter().all(|row| !row.starts_with(beginning.as_str()));
    match only.iter().find(is_unknown) {
        Some(unknown) => {
            Err(Error::Absent(format!("no row begins with {unknown}; available: {}", rows.join("; "))))
        }
        None => Ok(()),
    }
}

struct Table<'a, 's> {
    plan: &'a Plan,
    /// All rows considered so far.
    asked: RefCell<Vec<String>>,
    tree: &'a Tree,
    sides: Sides,
    sheet: &'a mut Sheet<'s, Load>,
    report: &'a mut Report,
}

impl Table<'_, '_> {
    fn wants(&self, row: &str) -> bool {
        let mut asked = self.asked.borrow_mut();
        if asked.iter().all(|known| known != row) {
            asked.push(row.to_owned());
        }
        self.plan.only.is_empty()
            || self.plan.only.iter().any(|beginning| row.starts_with(beginning.as_str()))
    }
}

/// All servers of the table that could be started, by column.
#[derive(Default)]
struct Sides(Vec<(&'static str, Nfs)>);

impl Sides {
    /// Starts all servers, and reports those that failed.
    fn start(tree: &Tree, no_peer: Option<&str>, report: &mut Report) -> Self {
        let (shared, beside) = (tree.place.shared(), tree.place.beside(""));
        let peer = match no_peer {
            Some(reason) => Err(Error::Absent(reason.to_owned())),
            None => Nfs::ganesha(&shared, &beside),
        };
        let servers = [
            (OURS, Nfs::tombolo(&shared, &beside)),
            (PEER, peer),
            (BARE, Nfs::limit_at(Link::Loopback, Limit::Swap, &beside)),
            (NULL, Nfs::limit_at(Link::Loopback, Limit::Null, &beside)),
        ];
        let started = servers.into_iter();
        Self(started.filter_map(|(column, server)| Some((column, report.present(column, server)?))).collect())
    }

    /// Returns the server that shows a limit, if it could be started.
    fn limit(&self, column: &str) -> Option<(&'static str, &Nfs)> {
        self.0.iter().find(|(name, _)| *name == column).map(|(name, server)| (*name, server))
    }

    /// Returns the columns and servers that are compared.
    fn each(&self) -> impl Iterator<Item = (&'static str, &Nfs)> {
        [OURS, PEER].into_iter().filter_map(|column| self.limit(column))
    }
}

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
struct Load {
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

    /// Returns the name of the procedure, and the size of pieces.
    fn by_libnfs(self) -> (&'static str, Option<u32>) {
        match self {
            Self::Read(bytes) => ("read", Some(bytes)),
            Self::Write(bytes) => ("write", Some(bytes)),
            _ => ("getattr", None),
        }
    }
}

/// Measures a row, if it was selected.
fn measure(table: &mut Table<'_, '_>, row: &Load) -> Result<()> {
    if !table.wants(&row.name) {
        return Ok(());
    }
    if row.work == Operation::ListWarm {
        fill_folder(&table.tree.place.shared().join(LISTED), table.sheet.number("entries"))?;
    }
    let limits = row.limits.iter().filter_map(|limit| table.sides.limit(limit));
    let mut entrants = Vec::new();
    let mut call_bytes = CALL_BYTES;
    for (column, server) in table.sides.each().chain(limits.filter(|(column, _)| *column != BARE)) {
        for variant in &row.variants {
            let work = if row.by_libnfs {
                let (procedure, bytes) = row.work.by_libnfs();
                driven(server, procedure, bytes, row.outstanding)
            } else {
                work(table, row, (column, server), variant).map(|(work, bytes)| {
                    call_bytes = bytes.unwrap_or(call_bytes);
                    work
                })
            };
            let name = (column, variant.name());
            table.report.enter(&mut entrants, &row.name, name, work, &[server.server.id()], variant.place);
        }
    }
    // Exchanges of bytes of the same sizes.
    let bare = table.sides.limit(BARE).filter(|_| row.limits.iter().any(|limit| limit == BARE));
    if let Some((column, bare)) = bare {
        let (reply_bytes, data_bytes) = row.work.reply();
        for variant in &row.variants {
            let sizes = (call_bytes, reply_bytes);
            let work = swap(bare.nfs, variant.wait, sizes, row.outstanding, data_bytes);
            let name = (column, variant.name());
            table.report.enter(&mut entrants, &row.name, name, work, &[bare.server.id()], variant.place);
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
    table: &Table<'_, '_>,
    row: &Load,
    (column, server): (&str, &Nfs),
    variant: &Variant,
) -> Result<(Work<'static>, Option<usize>)> {
    let (entries, new) = (table.sheet.number("entries"), Tree::new_folder().to_string_lossy());
    let (wait, outstanding) = (variant.wait, row.outstanding);
    let sized = |(work, bytes)| (work, Some(bytes));
    match row.work {
        Operation::Getattr => getattrs(server, FILE, wait, outstanding).map(sized),
        Operation::Read(bytes) => {
            let file = Tree::large().to_string_lossy();
            transfer(server, &file, wait, Direction::Read, bytes, outstanding).map(sized)
        }
        Operation::Write(bytes) => {
            let file = format!("{new}/{column}.large");
            let path = table.tree.place.shared().join(&file);
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
            let (shared, name) = (table.tree.place.shared(), format!("{column}-cold"));
            cold_list(server, &shared, &new, wait, &name, entries).map(|work| (work, None))
        }
        Operation::ListWarm => warm_list(server, LISTED, wait, entries).map(|work| (work, None)),
    }
}

/// Counts the syncs of each server per file.
fn count_syncs(table: &mut Table<'_, '_>) {
    let folder = Tree::new_folder().to_string_lossy();
    for (column, server) in table.sides.each() {
        let count = || {
            let mut work = small_files(server, &folder, Wait::Sleep, &format!("{column}-traced"))?;
            let counter = SyncCounter::start(server.server.id())?;
            work.run(TRACED, &mut Clock::new())?;
            Ok::<_, Error>(counter.stop()? as f64 / TRACED as f64)
        };
        if let Some(count) = table.report.present(&format!("{SYNCS}, {column}"), count()) {
            table.report.add(SYNCS, "", column, Unit::Count, count);
        }
    }
}

const LATENCY: &str = "GETATTR, 99 of 100";
const DIRECTORY: &str = "huge";
const IDLE: &str = "idle";
const LISTING: &str = "a long directory being listed";
/// Factor of the turn's length, since a 99th percentile needs many operations.
const LONGER: u32 = 5;

fn a_long_listing(table: &mut Table<'_, '_>) -> Result<()> {
    if !table.wants(LATENCY) {
        return Ok(());
    }
    let entries = table.sheet.number("long");
    fill_folder(&table.tree.place.shared().join(DIRECTORY), entries)?;
    let mut entrants = Vec::new();
    for (column, server) in table.sides.each() {
        let alone = || getattrs(server, FILE, Wait::Sleep, 1).map(|(work, _)| work);
        let listed = Lister::new(server, DIRECTORY, entries).and_then(|lister| Ok(beside(alone()?, lister)));
        for (variant, work) in [(IDLE, alone()), (LISTING, listed)] {
            let (report, servers) = (&mut *table.report, [server.server.id()]);
            report.enter(&mut entrants, LATENCY, (column, variant), work, &servers, Placement::Free);
        }
    }
    let contest = table.plan.contest();
    let contest = Contest { turn: contest.turn * LONGER, count_syscalls: false, ..contest };
    let (series, dropped) = contest.run(entrants);
    table.report.take(LATENCY, &[], &dropped);
    table.report.figures.extend(series.iter().filter_map(|series| Figure::p99(LATENCY, series)));
    table.sheet.set("turn_ms", &contest.turn.as_millis());
    Ok(())
}

const MEMORY: &str = "memory, 100,000 files touched";
const DESCRIPTORS: &str = "descriptors, 100,000 files touched";
const MEMORY_MAX: f64 = 64e6;

const FAIR: &str = "500 clients: most to least served";
const RATE: &str = "500 clients: GETATTR, 4 outstanding each";
const CLIENTS: usize = 500;
const CROWD_TIME: Duration = Duration::from_secs(3);
const QUICK_TIME: Duration = Duration::from_millis(300);
/// Maximum ratio between the throughputs of two clients.
const FAIR_MAX: f64 = 2.0;

/// Measures newly started servers.
fn after_many_files(table: &mut Table<'_, '_>, no_peer: Option<&str>) -> Result<()> {
    if !table.wants(MEMORY) {
        return Ok(());
    }
    let tree = Tree::new(&table.plan.within, table.sheet.number("touched"))?;
    // Old servers end first: two peers would conflict at rpcbind.
    drop(mem::take(&mut table.sides));
    let sides = Sides::start(&tree, no_peer, table.report);
    for (column, server) in sides.each() {
        let held = table.report.present(&format!("{MEMORY}, {column}"), touch(server, &tree));
        let Some(held) = held else { continue };
        table.report.add(MEMORY, "", column, Unit::Bytes, held.memory_bytes);
        table.report.add(DESCRIPTORS, "", column, Unit::Count, held.descriptors);
        if column == OURS {
            table.report.ratios.push(against_aim(MEMORY, column, held.memory_bytes, MEMORY_MAX));
        }
    }
    drop(sides);
    table.sides = Sides::start(table.tree, no_peer, table.report);
    Ok(())
}

/// Looks up and reads every small file.
fn touch(server: &Nfs, tree: &Tree) -> Result<Held> {
    let mut mounted = Mounted::new(server, Wait::Sleep)?;
    for number in 0..tree.files {
        let file = mounted.walk(&Tree::small(number).to_string_lossy())?;
        mounted.connection.repeat(&mut read(&file, Tree::SMALL_BYTES as u32), 1, 1, |_, _| {}, || {})?;
    }
    Held::by(&server.server.id().to_string())
}

/// Measures with all clients calling concurrently.
fn with_many_clients(table: &mut Table<'_, '_>) -> Result<()> {
    if !table.wants(FAIR) {
        return Ok(());
    }
    let time = if table.plan.quick { QUICK_TIME } else { CROWD_TIME };
    for (column, server) in table.sides.each() {
        Placement::Free.take(&[server.server.id()])?;
        let answers = Crowd::connect(server, FILE, CLIENTS).and_then(|mut crowd| crowd.run(time));
        let report = &mut *table.report;
        let Some(answers) = report.present(&format!("{FAIR}, {column}"), answers) else { continue };
        let most = answers.iter().max().copied().unwrap_or_default() as f64;
        let least = answers.iter().min().copied().unwrap_or_default() as f64;
        let times = most / least.max(1.0);
        let rate = answers.iter().sum::<u64>() as f64 / time.as_secs_f64();
        report.add(FAIR, "", column, Unit::Times, times);
        report.add(RATE, "", column, Unit::PerSecond, rate);
        if column == OURS {
            report.ratios.push(against_aim(FAIR, column, times, FAIR_MAX));
        }
    }
    table.sheet.set("crowd_s", &time.as_secs_f64());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_row_is_an_error_listing_known_rows() {
        let rows = ["GETATTR, 1 outstanding", "READ 1 MiB"].map(str::to_owned);
        let told =
            |only: &[&str]| unknown_row(&only.iter().map(|&only| only.to_owned()).collect::<Vec<_>>(), &rows);
        assert!(told(&[]).is_ok() && told(&["GETATTR", "READ"]).is_ok());
        let error = told(&["READ", "WRITE"]).expect_err("none").to_string();
        assert!(error.contains("WRITE") && error.contains("READ 1 MiB"), "{error}");
    }
}
