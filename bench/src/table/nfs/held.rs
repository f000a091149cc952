//! Memory and fairness of a server.

use std::mem;
use std::time::Duration;

use super::super::memory::against_aim;
use super::sides::Sides;
use super::{OURS, Table};
use crate::error::Result;
use crate::files::Tree;
use crate::measure::{Held, Placement};
use crate::nfs::Wait;
use crate::nfs::client::{Mounted, read};
use crate::nfs::work::Crowd;
use crate::peer::Nfs;
use crate::report::Unit;

const MEMORY: &str = "memory, 100,000 files touched";
const DESCRIPTORS: &str = "descriptors, 100,000 files touched";
const MEMORY_MAX: f64 = 64e6;

const FAIR: &str = "500 clients: most to least served";
const RATE: &str = "500 clients: GETATTR, 4 outstanding each";
const CROWDED: &str = "500 clients: memory";
const CLIENTS: usize = 500;
const TIME: Duration = Duration::from_secs(3);
const QUICK_TIME: Duration = Duration::from_millis(300);
/// Maximum ratio between the throughputs of two clients.
const FAIR_MAX: f64 = 2.0;

/// Measures newly started servers.
pub(super) fn after_many_files(table: &mut Table<'_>, no_peer: Option<&str>) -> Result<()> {
    if !table.wants(MEMORY) {
        return Ok(());
    }
    let tree = Tree::new(&table.plan.within, table.sheet.number("touched"))?;
    // Old servers end first: two peers would conflict at rpcbind.
    drop(mem::take(&mut table.sides));
    let sides = Sides::start(&tree, no_peer, &mut table.report);
    for (column, server) in sides.each() {
        match touch(server, &tree) {
            Ok(held) => {
                table.report.add(MEMORY, "", column, Unit::Bytes, held.memory_bytes);
                table.report.add(DESCRIPTORS, "", column, Unit::Count, held.descriptors);
                if column == OURS {
                    table.report.ratios.push(against_aim(MEMORY, column, held.memory_bytes, MEMORY_MAX));
                }
            }
            Err(error) => table.report.absent(format!("{MEMORY}, {column}: {error}")),
        }
    }
    drop(sides);
    table.sides = Sides::start(table.tree, no_peer, &mut table.report);
    Ok(())
}

/// Looks up and reads every small file.
fn touch(server: &Nfs, tree: &Tree) -> Result<Held> {
    let mut mounted = Mounted::new(server, Wait::Sleep)?;
    let mut folder = (String::new(), *mounted.root());
    for number in 0..tree.files() {
        let path = Tree::small(number);
        let text = path.to_string_lossy();
        let (parent, name) = text.split_once('/').unwrap_or(("", &text));
        if folder.0 != parent {
            folder = (parent.to_owned(), mounted.walk(parent)?);
        }
        let file = mounted.lookup(&folder.1, name)?;
        mounted.connection().repeat(&mut read(&file, Tree::SMALL_BYTES as u32), 1, 1, |_, _| {}, || {})?;
    }
    Held::by(&server.server().to_string())
}

/// Measures with all clients calling concurrently.
pub(super) fn with_many_clients(table: &mut Table<'_>) -> Result<()> {
    if !table.wants(FAIR) {
        return Ok(());
    }
    let time = if table.plan.quick { QUICK_TIME } else { TIME };
    let mut found = Vec::new();
    for (column, server) in table.sides.each() {
        Placement::Free.take(&[server.server()])?;
        let before = Held::by(&server.server().to_string())?;
        let answers = Crowd::connect(server, "d0/f0", CLIENTS).and_then(|mut crowd| {
            let answers = crowd.run(time)?;
            Ok((answers, Held::by(&server.server().to_string())?))
        });
        found.push((column, before, answers));
    }
    for (column, before, outcome) in found {
        let (answers, held) = match outcome {
            Ok(done) => done,
            Err(error) => {
                table.report.absent(format!("{FAIR}, {column}: {error}"));
                continue;
            }
        };
        let most = answers.iter().max().copied().unwrap_or_default() as f64;
        let least = answers.iter().min().copied().unwrap_or_default() as f64;
        let times = most / least.max(1.0);
        let rate = answers.iter().sum::<u64>() as f64 / time.as_secs_f64();
        let report = &mut table.report;
        report.add(FAIR, "", column, Unit::Times, times);
        report.add(RATE, "", column, Unit::PerSecond, rate);
        report.add(CROWDED, "before they connect", column, Unit::Bytes, before.memory_bytes);
        report.add(CROWDED, "under load", column, Unit::Bytes, held.memory_bytes);
        if column == OURS {
            table.report.ratios.push(against_aim(FAIR, column, times, FAIR_MAX));
        }
    }
    table.sheet.set("crowd_s", &time.as_secs_f64());
    Ok(())
}
