//! `store`: memory and start-up time of a proxy whose cache has very many blocks.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use super::Plan;
use super::site::{drop_caches, folder, proxy_of};
use super::stream;
use super::twice::rounds;
use crate::args::GvfsArgs;
use crate::error::{Doing, Result};
use crate::measure::go_on;
use crate::peer::{Mount, Nfs, Program, find};
use crate::report::{Figure, Report, Unit};
use crate::table::memory::Held;

const BLOCK_BYTES: usize = 4096;
/// Sparse files, which the store nevertheless keeps as blocks of zeroes.
const FILES: usize = 1_000;
const BLOCKS: usize = 10_000;
const QUICK_FILES: usize = 10;
const QUICK_BLOCKS: usize = 100;
const ROUNDS: usize = 5;
const MEMORY_MAX_BYTES: f64 = 256e6;
const START_MAX_NS: f64 = 5e9;
const COLUMN: &str = "proxy, exclusive";

pub fn run(plan: &Plan, wanted: &GvfsArgs) -> Result<Report> {
    let (files, blocks) = (plan.scaled(FILES, QUICK_FILES), plan.scaled(BLOCKS, QUICK_BLOCKS));
    let title = format!("A cache of {} blocks of 4 KiB", files * blocks);
    let mut report = plan.report("gvfs-store", &title);
    let (folder, shared) = folder(wanted)?;
    let names: Vec<String> = (0..files).map(|number| format!("f{number:06}")).collect();
    for name in &names {
        let path = shared.join(name);
        let file = File::create_new(&path).doing_to("create", &path)?;
        file.set_len((blocks * BLOCK_BYTES) as u64).doing_to("lengthen", &path)?;
    }
    let origin = Nfs::tombolo(&shared, folder.path())?;
    let (cache, point) = (folder.path().join("cache"), folder.path().join("proxied"));
    let bytes_max = files * blocks * BLOCK_BYTES * 2;
    let start = || proxied(&origin.url(), &cache, &point, bytes_max);
    let held = |mount: &Mount| Held::by(&mount.server().to_string()).map(|held| held.memory_bytes);

    let mut proxy = start()?;
    read_all(&point, &names, blocks)?;
    let mut memory = vec![("memory after all was fetched", held(&proxy)?)];
    let mut starts_ns = Vec::new();
    for _ in 0..rounds(plan, ROUNDS) {
        go_on()?;
        drop(proxy);
        drop_caches()?;
        let begun = Instant::now();
        proxy = start()?;
        read_all(&point, names.get(..1).unwrap_or_default(), blocks)?;
        starts_ns.push(begun.elapsed().as_nanos() as f64);
    }
    memory.push(("memory after it began anew", held(&proxy)?));
    read_all(&point, &names, blocks)?;
    memory.push(("memory after all was read from the cache", held(&proxy)?));
    drop(proxy);

    let row = "start, to the end of the first file";
    if let Some(figure) = Figure::of_rounds(row, "", COLUMN, Unit::Nanoseconds, starts_ns) {
        let ns = figure.spread.median;
        report.target(row, "≤ 5 s", Unit::Nanoseconds.text(ns), Some(ns <= START_MAX_NS));
        report.figures.push(figure);
    }
    for (row, bytes) in memory {
        report.figures.push(Figure::single(row, "", COLUMN, Unit::Bytes, bytes));
        report.target(row, "≤ 256 MB", Unit::Bytes.text(bytes), Some(bytes <= MEMORY_MAX_BYTES));
    }
    report.condition(format!(
        "{files} files of {blocks} blocks of 4 KiB, read once; the cache is below {}, and takes as much of the disk. Before each start the kernel's caches are \
         dropped. Memory: VmRSS",
        wanted.disk.display()
    ));
    Ok(report)
}

fn proxied(url: &str, cache: &Path, point: &Path, bytes_max: usize) -> Result<Mount> {
    let mut command = proxy_of(Command::new(find(Program::Tombolo)?), url, cache, "exclusive");
    command.args(["--block-size", "4K", "--cache-size", &bytes_max.to_string(), "--fuse"]).arg(point);
    Mount::of_server(command, point)
}

fn read_all(root: &Path, names: &[String], blocks: usize) -> Result<()> {
    names.iter().try_for_each(|name| stream::read_all(&root.join(name), (blocks * BLOCK_BYTES) as u64))
}
