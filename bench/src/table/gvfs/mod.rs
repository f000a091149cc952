//! `gvfs`: a remote tree through a caching proxy, in parts, each with its own report.
//!
//! Named after the paper on GVFS (caching proxies for VMs over a WAN), whose method most parts use: a job
//! runs twice in a row, first with all caches cold, then warm, and is compared with the same job on a local
//! tree and on one mounted over the WAN link without a cache.
//!
//! To add a part: its sheet, `bench/tables/gvfs-PART.toml`; a function that adds the sheet's figures to a
//! report; a line with both in [`PARTS`]; its rows in `docs/benchmarks.md`. Missing
//! prerequisites are reported as [`Error::Absent`](crate::error::Error::Absent), or as missing columns with
//! the reason.
//!
//! Reading order: [`site`] (tree, WAN link and columns), [`measure`] (the two runs of a job), the parts in
//! any order; [`vm`] has the paper's own jobs in virtual machines, and [`clone`](mod@clone) clones machines.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::ValueEnum;
pub use clone::answered;
use serde::de::DeserializeOwned;

use crate::error::{Doing, Result};
use crate::files::{PIECE_BYTES, Place, Script, random_file, read_first};
use crate::measure::{Clock, Held, Work, go_on};
use crate::nfs::Wait;
use crate::nfs::client::{Mounted, Page, Reply, page, readdirplus};
use crate::peer::{Mount, Nfs, TOMBOLO, completed, find};
use crate::report::{Figure, Report, Unit};
use crate::sheet::{Named, Row, Sheet, part, turns};
use crate::table::vnfs::{SmallTree, Walk, find_newer, git_status, make_repository};
use crate::table::{Part, Plan};
use site::{Column, Site, drop_caches, proxy_of};

mod clone;
mod files;
mod site;
mod vm;

/// All parts in order, by name.
pub const PARTS: &[(&str, Part)] = &[
    ("walk", part!("gvfs-walk", walk)),
    ("stream", part!("gvfs-stream", stream)),
    ("build", part!("gvfs-build", build)),
    ("warm", part!("gvfs-warm", files::warm)),
    ("write", part!("gvfs-write", write)),
    ("store", part!("gvfs-store", store)),
    ("tls", part!("gvfs-tls", files::tls)),
    ("vm-build", part!("gvfs-vm-build", |sheet, report| vm::run(sheet, report, "build", ["", "dep"]))),
    ("vm-latex", part!("gvfs-vm-latex", |sheet, report| vm::run(sheet, report, "latex", ["20", "1"]))),
    ("vm-seismic", part!("gvfs-vm-seismic", |sheet, report| vm::run(sheet, report, "seismic", ["64", "1"]))),
    ("clone", part!("gvfs-clone", clone::run)),
    ("clone-s1", part!("gvfs-clone-eight", clone::s1)),
    ("clone-s2", part!("gvfs-clone-eight", clone::s2)),
    ("clone-p", part!("gvfs-clone-eight", clone::p)),
];

pub const COLD: &str = "cold";
pub const WARM: &str = "warm";

/// Job for each column.
struct Job<'a> {
    /// Timed rows.
    rows: &'a [&'a str],
    /// Function that runs the job in the tree at this path, and returns the time of each row.
    run: &'a dyn Fn(&Path) -> Result<Vec<Duration>>,
    /// Bytes read, if the figure is a rate.
    bytes: Option<u64>,
    /// Bytes transferred by [`Column::Bare`].
    bare_bytes: u64,
}

/// Runs a job cold and then warm on each column in every round, each time with a fresh mount and cache for
/// both runs, and adds the times to the report.
fn measure<R: Named + DeserializeOwned>(
    sheet: &Sheet<'_, R, Column>,
    report: &mut Report,
    site: &Site,
    job: &Job<'_>,
) -> Result<()> {
    let columns = site.columns(&sheet.plan.columns(&sheet.columns, Column::id)?);
    if columns.contains(&Column::SecondLevel) {
        // Fills the proxy on the LAN.
        (job.run)(&site.fresh(Column::SecondLevel)?.root)?;
    }
    let (rows, mut failed) = (job.rows.join(", "), Vec::new());
    for column in turns(sheet.rounds(), &columns) {
        go_on()?;
        if failed.contains(column) {
            continue;
        }
        let done = both(report, site, *column, &rows, job);
        if done.is_err() {
            failed.push(*column);
            let is_of_column =
                |figure: &Figure| job.rows.contains(&&*figure.row) && figure.column == column.name();
            report.figures.retain(|figure| !is_of_column(figure));
        }
        report.or_absent(&format!("{rows}, {}", column.name()), done)?;
    }
    Ok(())
}

/// Runs a job cold and warm on one column, and adds the times and, of remote columns, the requests at the
/// origin. For [`Column::Bare`], a stream of bytes is timed once instead.
fn both(report: &mut Report, site: &Site, column: Column, rows: &str, job: &Job<'_>) -> Result<()> {
    let mut add = |variant: &str, took: &[Duration]| {
        for (row, took) in job.rows.iter().zip(took.iter().map(Duration::as_secs_f64)) {
            let (unit, value) = match job.bytes {
                Some(bytes) => (Unit::BytesPerSecond, bytes as f64 / took),
                None => (Unit::Nanoseconds, took * 1e9),
            };
            report.add(row, variant, column.name(), unit, value);
        }
    };
    if column == Column::Bare {
        add(COLD, &[site.bare(job.bare_bytes)?]);
        return Ok(());
    }
    let side = site.fresh(column)?;
    drop_caches()?;
    let mut asked = Vec::new();
    for variant in [COLD, WARM] {
        go_on()?;
        let before = site.origin.requests()?;
        add(variant, &(job.run)(&side.root)?);
        asked.push((variant, site.origin.requests()?.since(&before)));
    }
    for (variant, asked) in asked.into_iter().filter(|_| column.is_far()) {
        let what = format!("{rows}, {}, {variant}: requests at the origin", column.name());
        report.target(&what, "counted, in the last round", asked.text(), None);
    }
    Ok(())
}

/// Sets the word `{twice}` of a sheet: the method of [`measure`].
fn describe<R: Named + DeserializeOwned>(sheet: &mut Sheet<'_, R, Column>) {
    let rounds = sheet.rounds();
    sheet.set("twice", &format!(
        "{rounds} rounds, in each of which every column has one turn, with a mount and a cache of its own below {{disk}}, in rotating order; nothing is pinned. \
         Each turn is two runs in a row: `{COLD}`: after the kernel's caches were dropped (drop_caches), and with an empty cache; `{WARM}`: once \
         more, by the same mount. A figure is the median of its rounds (quartiles in brackets), a ratio the median of the ratios within each round",
    ));
}

/// Project to build.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Source {
    /// Apache httpd, configured and built
    #[default]
    Httpd,
    /// All 33 files of Lua, compiled without make
    Lua,
}

impl Source {
    /// Returns the archive's name without its extension.
    fn name(self) -> &'static str {
        if self == Self::Httpd { "httpd" } else { "lua" }
    }
}

/// Measures a C project with remote sources and local objects.
fn build(sheet: &mut Sheet<'_, String, Column>, report: &mut Report) -> Result<()> {
    let plan = sheet.plan;
    let job = sheet.script(if plan.quick { "little" } else { plan.source.name() })?.with_archive()?;
    describe(sheet);
    sheet.set("project", &job.about);
    let place = Place::within(&plan.disk)?;
    let mut unpack = Command::new("tar");
    unpack.args(["--strip-components=1", "-xzf"]).args(&job.arguments).arg("-C").arg(place.shared());
    completed("tar", &mut unpack)?;
    let mut site = Site::new(plan, &place)?;
    site.add_lan(report);
    let objects = place.beside("objects");
    let rows = [job.names(), vec!["in all"]].concat();
    let run = |root: &Path| {
        let mut took = Script { arguments: vec![root.into()], ..job.clone() }.done(&objects)?;
        took.push(took.iter().sum());
        fs::remove_dir_all(&objects).doing_to("remove", &objects)?;
        Ok(took)
    };
    let job = Job { rows: &rows, run: &run, bytes: None, bare_bytes: 0 };
    measure(sheet, report, &site, &job)?;
    site.describe(report);
    Ok(())
}

const FILE: &str = "large";

/// Measures the sequential read of one large remote file.
fn stream(sheet: &mut Sheet<'_, String, Column>, report: &mut Report) -> Result<()> {
    let plan = sheet.plan;
    let given = plan.bytes.map(|bytes| bytes.div_ceil(PIECE_BYTES as u64) as usize);
    let pieces = given.unwrap_or(sheet.number("pieces"));
    describe(sheet);
    sheet.set("pieces", &pieces);
    let place = Place::within(&plan.disk)?;
    let bytes = (pieces * PIECE_BYTES) as u64;
    random_file(&place.shared().join(FILE), bytes)?;
    let mut site = Site::new(plan, &place)?;
    site.add_lan(report);
    let run = |root: &Path| {
        let begun = Instant::now();
        read_first(&root.join(FILE), bytes, &mut vec![0; PIECE_BYTES])?;
        Ok(vec![begun.elapsed()])
    };
    let job = Job { rows: &["read"], run: &run, bytes: Some(bytes), bare_bytes: bytes };
    measure(sheet, report, &site, &job)?;
    site.describe(report);
    Ok(())
}

/// Measures changes of a remote tree: unpacking of sources, a large file, and removal of everything.
fn write(sheet: &mut Sheet<'_, String, Column>, report: &mut Report) -> Result<()> {
    let plan = sheet.plan;
    let project = if plan.quick { Source::Lua } else { plan.source };
    describe(sheet);
    sheet.set("project", &project.name());
    let place = Place::within(&plan.disk)?;
    let site = Site::new(plan, &place)?;
    let given = place.beside("given");
    random_file(&given, (sheet.number("pieces") * PIECE_BYTES) as u64)?;
    let mut steps = Script { archive: project.name().to_owned(), ..sheet.script("write")? }.with_archive()?;
    steps.arguments.push(given.into());
    // In a new directory of the tree, which `timed` removes.
    let run = |root: &Path| steps.timed(&root.join("work"));
    let job = Job { rows: &steps.names(), run: &run, bytes: None, bare_bytes: 0 };
    measure(sheet, report, &site, &job)?;
    site.describe(report);
    Ok(())
}

/// Size of a listing page, in bytes.
const PAGE_BYTES: u32 = 1 << 20;

/// Measures programs that stat every file of a remote tree and read none.
fn walk(sheet: &mut Sheet<'_, Row<Walk>, Column>, report: &mut Report) -> Result<()> {
    let plan = sheet.plan;
    let tree = SmallTree::new(&plan.disk, sheet.number("files"))?;
    let repository = report.present("git status", repository(&tree.place.shared()));
    let listing_bytes = listing_bytes(&tree.place)?;
    describe(sheet);
    sheet.set("listing_mb", &format!("{:.2}", listing_bytes as f64 / 1e6));
    let site = Site::new(plan, &tree.place)?;
    let newest = tree.newest()?;
    for Row { name, work } in sheet.rows.iter().filter(|row| row.work != Walk::Status || repository.is_some())
    {
        let run = |root: &Path| match work {
            Walk::Find => timed(find_newer(root, &newest)),
            _ => timed(git_status(root)),
        };
        let job = Job { rows: &[name], run: &run, bytes: None, bare_bytes: listing_bytes };
        measure(sheet, report, &site, &job)?;
    }
    site.describe(report);
    Ok(())
}

fn timed(mut work: Work<'_>) -> Result<Vec<Duration>> {
    let mut clock = Clock::new();
    work.run(1, &mut clock)?;
    Ok(vec![clock.total()])
}

/// Creates a repository of the tree that is valid through any mount.
fn repository(root: &Path) -> Result<()> {
    make_repository(root)?;
    let path = root.join(".git/config");
    let config = OpenOptions::new().append(true).open(&path);
    config
        .and_then(|mut file| file.write_all(b"[core]\n\tcheckStat = minimal\n\tfileMode = false\n"))
        .doing_to("write", &path)
}

/// Returns the size of all replies that list names and attributes.
fn listing_bytes(place: &Place) -> Result<u64> {
    let shared = place.shared();
    let server = Nfs::tombolo(&shared, place.folder())?;
    let mut mounted = Mounted::new(&server, Wait::Sleep)?;
    let (mut folders, mut bytes, mut reply) = (vec![shared.clone()], 0, Reply::default());
    while let Some(folder) = folders.pop() {
        let relative = folder.strip_prefix(&shared).unwrap_or(&folder).to_string_lossy().into_owned();
        let handle = if relative.is_empty() { mounted.root } else { mounted.walk(&relative)? };
        let mut at = Page::default();
        while !at.end {
            mounted.connection.call(&mut readdirplus(&handle, &at, PAGE_BYTES), &mut reply)?;
            at = page(&reply)?;
            bytes += reply.bytes as u64;
        }
        for entry in fs::read_dir(&folder).doing_to("list", &folder)?.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(entry.path());
            }
        }
    }
    Ok(bytes)
}

const BLOCK_BYTES: usize = 4096;
const COLUMN: &str = "proxy, exclusive";

/// Measures memory and start-up time of a proxy whose cache has very many blocks.
fn store(sheet: &mut Sheet<'_>, report: &mut Report) -> Result<()> {
    let (files, blocks) = (sheet.number("files"), sheet.number("blocks"));
    sheet.set("all", &(files * blocks));
    let place = Place::within(&sheet.plan.disk)?;
    let shared = place.shared();
    let names: Vec<String> = (0..files).map(|number| format!("f{number:06}")).collect();
    for name in &names {
        // Sparse files, which the store nevertheless keeps as blocks of zeroes.
        let path = shared.join(name);
        let file = File::create_new(&path).doing_to("create", &path)?;
        file.set_len((blocks * BLOCK_BYTES) as u64).doing_to("lengthen", &path)?;
    }
    let origin = Nfs::tombolo(&shared, place.folder())?;
    let (cache, point) = (place.beside("cache"), place.beside("proxied"));
    let start = || proxied(&origin.url(), &cache, &point, files * blocks * BLOCK_BYTES * 2);
    let held = |report: &mut Report, row: &str, mount: &Mount| {
        let held = Held::by(&mount.server.id().to_string())?;
        report.add(row, "", COLUMN, Unit::Bytes, held.memory_bytes);
        Ok(())
    };
    let mut proxy = start()?;
    read_each(&point, &names, blocks)?;
    held(report, "memory after all was fetched", &proxy)?;
    for _ in 0..sheet.rounds() {
        go_on()?;
        drop(proxy);
        drop_caches()?;
        let begun = Instant::now();
        proxy = start()?;
        read_each(&point, names.get(..1).unwrap_or_default(), blocks)?;
        let ns = begun.elapsed().as_nanos() as f64;
        report.add("start, to the end of the first file", "", COLUMN, Unit::Nanoseconds, ns);
    }
    held(report, "memory after it began anew", &proxy)?;
    read_each(&point, &names, blocks)?;
    held(report, "memory after all was read from the cache", &proxy)?;
    Ok(())
}

fn proxied(url: &str, cache: &Path, point: &Path, bytes_max: usize) -> Result<Mount> {
    let mut command = proxy_of(Command::new(find(TOMBOLO)?), url, cache, "exclusive");
    command.args(["--block-size", "4K", "--cache-size", &bytes_max.to_string(), "--fuse"]).arg(point);
    Mount::of_server(command, point)
}

fn read_each(root: &Path, names: &[String], blocks: usize) -> Result<()> {
    let mut buffer = vec![0; PIECE_BYTES];
    let bytes = (blocks * BLOCK_BYTES) as u64;
    names.iter().try_for_each(|name| read_first(&root.join(name), bytes, &mut buffer))
}
