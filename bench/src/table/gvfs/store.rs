//! `store`: memory and start-up time of a proxy whose cache has very many blocks.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use super::Plan;
use super::site::{drop_caches, folder, proxy_of};
use super::stream;
use crate::error::{Doing, Result};
use crate::measure::{Held, go_on};
use crate::peer::{Mount, Nfs, Program, find};
use crate::report::{Report, Unit};
use crate::sheet::{Sheet, sheet};

const BLOCK_BYTES: usize = 4096;
const COLUMN: &str = "proxy, exclusive";

pub fn run(plan: &Plan) -> Result<Report> {
    let mut sheet: Sheet<'_> = sheet!(plan, "gvfs-store")?;
    let (files, blocks) = (sheet.number("files"), sheet.number("blocks"));
    sheet.set("all", &(files * blocks));
    let mut report = sheet.report();
    let (folder, shared) = folder(plan)?;
    let names: Vec<String> = (0..files).map(|number| format!("f{number:06}")).collect();
    for name in &names {
        // Sparse files, which the store nevertheless keeps as blocks of zeroes.
        let path = shared.join(name);
        let file = File::create_new(&path).doing_to("create", &path)?;
        file.set_len((blocks * BLOCK_BYTES) as u64).doing_to("lengthen", &path)?;
    }
    let origin = Nfs::tombolo(&shared, folder.path())?;
    let (cache, point) = (folder.path().join("cache"), folder.path().join("proxied"));
    let start = || proxied(&origin.url(), &cache, &point, files * blocks * BLOCK_BYTES * 2);
    let held = |report: &mut Report, row: &str, mount: &Mount| {
        let held = Held::by(&mount.server().to_string())?;
        report.add(row, "", COLUMN, Unit::Bytes, held.memory_bytes);
        Ok(())
    };
    let mut proxy = start()?;
    read_all(&point, &names, blocks)?;
    held(&mut report, "memory after all was fetched", &proxy)?;
    for _ in 0..sheet.rounds() {
        go_on()?;
        drop(proxy);
        drop_caches()?;
        let begun = Instant::now();
        proxy = start()?;
        read_all(&point, names.get(..1).unwrap_or_default(), blocks)?;
        let ns = begun.elapsed().as_nanos() as f64;
        report.add("start, to the end of the first file", "", COLUMN, Unit::Nanoseconds, ns);
    }
    held(&mut report, "memory after it began anew", &proxy)?;
    read_all(&point, &names, blocks)?;
    held(&mut report, "memory after all was read from the cache", &proxy)?;
    Ok(sheet.finish(report))
}

fn proxied(url: &str, cache: &Path, point: &Path, bytes_max: usize) -> Result<Mount> {
    let mut command = proxy_of(Command::new(find(Program::Tombolo)?), url, cache, "exclusive");
    command.args(["--block-size", "4K", "--cache-size", &bytes_max.to_string(), "--fuse"]).arg(point);
    Mount::of_server(command, point)
}

fn read_all(root: &Path, names: &[String], blocks: usize) -> Result<()> {
    names.iter().try_for_each(|name| stream::read_all(&root.join(name), (blocks * BLOCK_BYTES) as u64))
}
