//! `disk`: virtio-blk directly on the queue, Tombolo's server compared with QEMU's storage daemon, without a
//! guest; and its redo log compared with a raw image.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use super::sides::{Side, measure};
use super::{Plan, folder};
use crate::error::{Doing, Result};
use crate::guest::{DiskGuest, DiskRequests as Requests, Wait};
use crate::measure::Placement;
use crate::peer::{AtSocket, Program};
use crate::report::Report;
use crate::sheet::{Row, Sheet, sheet};

pub const LARGE: u32 = 1 << 20;
const DEPTH: usize = 32;
/// Column of an empty overlay over a raw image.
const REDO_LOG: &str = "tombolo, redo log";

pub fn run(plan: &Plan) -> Result<Report> {
    let sheet: Sheet<'_, Row<Requests>> = sheet!(plan, "disk")?;
    let disk_bytes = (sheet.number("mib") as u64) << 20;
    let variants = [
        ("tmpfs", folder(&plan.within)?, false),
        ("on a disk", folder(&plan.disk)?, false),
        ("on a disk, direct", folder(&plan.disk)?, true),
    ];
    let mut sides = Vec::new();
    for column in [Program::Tombolo.name(), REDO_LOG, Program::StorageDaemon.name()] {
        for (variant, place, is_direct) in variants.iter().filter(|it| column != REDO_LOG || !it.2) {
            sides.push(side((column, variant), place.path(), *is_direct, disk_bytes));
        }
    }
    measure(sheet, &plan.contest(), sides)
}

/// Starts a server with its own image, in the page cache or with direct I/O, and a guest.
fn side(
    (column, variant): (&str, &str),
    place: &Path,
    is_direct: bool,
    disk_bytes: u64,
) -> Result<Side<Requests>> {
    let at = |end: &str| place.join(format!("{column}.{end}"));
    let (image, socket) = (at("img"), at("sock"));
    fill(&image, disk_bytes)?;
    let server = match column {
        REDO_LOG => AtSocket::redo_log(&image, &at("overlay"), &socket)?,
        _ if column == Program::Tombolo.name() => {
            AtSocket::virtio_blk(Program::Tombolo, &image, &socket, is_direct)?
        }
        _ => AtSocket::virtio_blk(Program::StorageDaemon, &image, &socket, is_direct)?,
    };
    let guest = DiskGuest::connect(server.socket(), Wait::Poll, DEPTH, LARGE, disk_bytes)?;
    Ok(Side {
        column: column.to_owned(),
        variant: variant.to_owned(),
        place: Some(Placement::TwoCores),
        server: server.server(),
        work: Box::new(move |requests| Ok(DiskGuest::work(&guest, requests))),
        _kept: Box::new(server),
    })
}

/// Creates an image of this length and syncs it.
pub fn fill(image: &Path, bytes: u64) -> Result<()> {
    let piece = vec![0x5a; LARGE as usize];
    let mut file = File::create(image).doing_to("make", image)?;
    for _ in 0..bytes / u64::from(LARGE) {
        file.write_all(&piece).doing_to("write", image)?;
    }
    file.sync_all().doing_to("write", image)
}
