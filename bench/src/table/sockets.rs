//! Tables of servers at a socket, whose client is this process instead of a guest:
//!
//! - `disk`: virtio-blk, with requests put directly into the virtqueue: Tombolo's server compared with QEMU's
//!   storage daemon; and its redo log compared with a raw image.
//! - `nbd`: a disk over NBD, Tombolo compared with nbdkit.
//! - `fuse --virtio`: virtio-fs, with requests put directly into the virtqueues: Tombolo's server compared
//!   with virtiofsd.

use std::any::Any;
use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use serde::Deserialize;

use crate::error::Result;
use crate::files::{Tree, random_file};
use crate::guest::{
    DiskGuest, DiskRequests, Guest, NbdClient, SharedGuest, Wait, create_unlink, getattr, lookup,
    open_release, outstanding, read, write,
};
use crate::measure::{Placement, Work};
use crate::peer::{AtSocket, NBDKIT, STORAGE_DAEMON, TOMBOLO};
use crate::report::Report;
use crate::sheet::{Row, Sheet};
use crate::table::folder;

/// A server with its client, by the column and variant of its figures.
struct Side<W> {
    column: String,
    variant: String,
    place: Option<Placement>,
    /// Process id.
    server: u32,
    /// Function that returns the operation of a row.
    work: Box<dyn Fn(W) -> Result<Work<'static>>>,
    /// Server and files, which end after the client.
    _kept: Box<dyn Any>,
}

/// Runs the contest of each row among the sides that could be started, and completes the report.
fn measure<W: Copy>(
    sheet: &Sheet<'_, Row<W>>,
    report: &mut Report,
    sides: Vec<Result<Side<W>>>,
) -> Result<()> {
    let contest = sheet.plan.contest();
    let sides: Vec<_> = sides
        .into_iter()
        .filter_map(|side| side.map_err(|error| report.absent(error.to_string())).ok())
        .collect();
    for Row { name: row, work } in &sheet.rows {
        let mut entrants = Vec::new();
        for side in &sides {
            let name = (&*side.column, &*side.variant);
            report.enter(&mut entrants, row, name, (side.work)(*work), &[side.server], side.place);
        }
        report.contest(row, &contest, entrants);
    }
    Ok(())
}

const LARGE_BYTES: u32 = 1 << 20;
const DEPTH: usize = 32;
/// Column of a server whose redo log, an initially empty overlay, receives the writes to a raw image.
const REDO_LOG: &str = "tombolo, redo log";

pub fn disk(sheet: &mut Sheet<'_, Row<DiskRequests>>, report: &mut Report) -> Result<()> {
    let plan = sheet.plan;
    let disk_bytes = (sheet.number("mib") as u64) << 20;
    let variants = [
        ("tmpfs", folder(&plan.within)?, false),
        ("on a disk", folder(&plan.disk)?, false),
        ("on a disk, direct", folder(&plan.disk)?, true),
    ];
    let mut sides = Vec::new();
    for column in [TOMBOLO, REDO_LOG, STORAGE_DAEMON] {
        for (variant, place, is_direct) in variants.iter().filter(|it| column != REDO_LOG || !it.2) {
            sides.push(disk_side((column, variant), place.path(), *is_direct, disk_bytes));
        }
    }
    measure(sheet, report, sides)
}

/// Starts a server with its own image, in the page cache or with direct I/O, and a guest.
fn disk_side(
    (column, variant): (&str, &str),
    place: &Path,
    is_direct: bool,
    disk_bytes: u64,
) -> Result<Side<DiskRequests>> {
    let at = |end: &str| place.join(format!("{column}.{end}"));
    let (image, socket) = (at("img"), at("sock"));
    random_file(&image, disk_bytes)?;
    let server = match column {
        REDO_LOG => AtSocket::redo_log(&image, &at("overlay"), &socket)?,
        program => AtSocket::virtio_blk(program, &image, &socket, is_direct)?,
    };
    let guest = DiskGuest::connect(&server.place, Wait::Poll, DEPTH, LARGE_BYTES, disk_bytes)?;
    Ok(Side {
        column: column.to_owned(),
        variant: variant.to_owned(),
        place: Some(Placement::TwoCores),
        server: server.server.id(),
        work: Box::new(move |requests| Ok(DiskGuest::work(&guest, requests))),
        _kept: Box::new(server),
    })
}

/// Name of the image file, which is also the NBD export's name.
const EXPORT: &str = "disk.img";

pub fn nbd(sheet: &mut Sheet<'_, Row<DiskRequests>>, report: &mut Report) -> Result<()> {
    let plan = sheet.plan;
    let disk_bytes = (sheet.number("mib") as u64) << 20;
    let sides = [TOMBOLO, NBDKIT].map(|program| nbd_side(program, &plan.disk, disk_bytes));
    measure(sheet, report, sides.into())
}

/// Starts a server with its own image, and a client.
fn nbd_side(program: &str, disk: &Path, disk_bytes: u64) -> Result<Side<DiskRequests>> {
    let place = folder(disk)?;
    let (image, socket) = (place.path().join(EXPORT), place.path().join("sock"));
    random_file(&image, disk_bytes)?;
    let server = AtSocket::nbd(program, &image, &socket)?;
    let client = NbdClient::connect(&server.place, EXPORT, LARGE_BYTES)?;
    Ok(Side {
        column: program.to_owned(),
        variant: String::new(),
        place: None,
        server: server.server.id(),
        work: Box::new(move |requests| Ok(NbdClient::work(&client, requests))),
        _kept: Box::new((server, place)),
    })
}

/// Number of small files in the tree.
const FILES: usize = 1_000;
const SMALL_BYTES: u32 = 4096;
/// Requests in flight in the rows that pipeline.
const WINDOW: usize = 16;

/// Operation of a row.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    Getattr,
    Lookup,
    Open,
    Create,
    ReadSmall,
    Outstanding,
    ReadLarge,
    WriteLarge,
}

/// Waiting mode of the client ("guest"), and placement. A shared core excludes polling.
const VARIANTS: [(&str, Wait, Placement); 3] = [
    ("guest polls, two cores", Wait::Poll, Placement::TwoCores),
    ("guest sleeps, two cores", Wait::Event, Placement::TwoCores),
    ("guest sleeps, same core", Wait::Event, Placement::SameCore),
];

pub fn virtio(sheet: &mut Sheet<'_, Row<Request>>, report: &mut Report) -> Result<()> {
    let plan = sheet.plan;
    let tree = Tree::new(&plan.within, FILES)?;
    let each = sheet.columns.iter().flat_map(|column| VARIANTS.map(|variant| (column, variant)));
    let sides = each.map(|(column, variant)| virtio_side(column, variant, &tree)).collect();
    measure(sheet, report, sides)
}

/// Starts a server, named by the column as `PROGRAM [MODE]`, and its client.
fn virtio_side(
    column: &str,
    (variant, wait, place): (&str, Wait, Placement),
    tree: &Tree,
) -> Result<Side<Request>> {
    let name = format!("{column}-{variant}").replace([' ', ','], "-");
    let (program, mode) = column.split_once(' ').unwrap_or((column, "auto"));
    let server = AtSocket::virtio_fs(program, &tree.place.shared(), &tree.place.beside(&name), mode, &[])?;
    let guest = Rc::new(RefCell::new(Guest::connect(&server.place, wait, WINDOW, LARGE_BYTES)?));
    Ok(Side {
        column: column.to_owned(),
        variant: variant.to_owned(),
        place: Some(place),
        server: server.server.id(),
        work: Box::new(move |request| work(&guest, request, &name)),
        _kept: Box::new(server),
    })
}

fn work(guest: &SharedGuest, request: Request, name: &str) -> Result<Work<'static>> {
    match request {
        Request::Getattr => getattr(guest),
        Request::Lookup => lookup(guest),
        Request::Open => open_release(guest),
        Request::Create => create_unlink(guest, name),
        Request::ReadSmall => read(guest, SMALL_BYTES),
        Request::Outstanding => outstanding(guest),
        Request::ReadLarge => read(guest, LARGE_BYTES),
        Request::WriteLarge => write(guest, LARGE_BYTES),
    }
}
