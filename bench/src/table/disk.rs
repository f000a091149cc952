//! `disk`: virtio-blk directly on the queue, Tombolo's server compared with QEMU's storage daemon, without a
//! guest; and its redo log compared with a raw image.

use std::cell::RefCell;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::rc::Rc;

use tempfile::TempDir;

use super::{Plan, folder};
use crate::error::{Doing, Result};
use crate::guest::{DiskGuest, DiskRequests as Requests, Wait, Way};
use crate::measure::Placement;
use crate::peer::{AtSocket, Program, virtio_blk};
use crate::report::Report;

pub const SMALL: u32 = 4096;
pub const LARGE: u32 = 1 << 20;
const DEPTH: usize = 32;

/// Rows with the target ratio to the peer.
const ROWS: [(&str, Requests, f64); 6] = [
    ("read 4 KiB", Requests { way: Way::Read, bytes: SMALL, depth: 1 }, 1.3),
    ("write 4 KiB", Requests { way: Way::Write, bytes: SMALL, depth: 1 }, 1.3),
    ("read 4 KiB, 32 under way", Requests { way: Way::Read, bytes: SMALL, depth: DEPTH }, 1.3),
    ("write 4 KiB, 32 under way", Requests { way: Way::Write, bytes: SMALL, depth: DEPTH }, 1.3),
    ("read 1 MiB", Requests { way: Way::Read, bytes: LARGE, depth: 1 }, 1.0),
    ("write 1 MiB", Requests { way: Way::Write, bytes: LARGE, depth: 1 }, 1.0),
];

/// Kind of server and disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Tombolo,
    /// An empty overlay over a raw image.
    RedoLog,
    StorageDaemon,
}

impl Column {
    const ALL: [Self; 3] = [Self::Tombolo, Self::RedoLog, Self::StorageDaemon];

    fn name(self) -> &'static str {
        match self {
            Self::Tombolo => Program::Tombolo.name(),
            Self::RedoLog => "tombolo, redo log",
            Self::StorageDaemon => Program::StorageDaemon.name(),
        }
    }
}

/// Minimum speed of small writes to a redo log, relative to a raw image.
const REDO_TARGET: f64 = 0.7;

/// Measures the table. `disk` is a directory on a disk.
pub fn run(plan: &Plan, disk: &Path) -> Result<Report> {
    let mut report = plan.report("disk", "virtio-blk straight on the queue");
    let disk_bytes = if plan.quick { 8 << 20 } else { 256 << 20 };
    let variants = [
        Variant { name: "tmpfs", place: folder(&plan.within)?, is_direct: false },
        Variant { name: "on a disk", place: folder(disk)?, is_direct: false },
        Variant { name: "on a disk, direct", place: folder(disk)?, is_direct: true },
    ];
    let mut sides = Vec::new();
    for column in Column::ALL {
        for variant in variants.iter().filter(|it| column != Column::RedoLog || !it.is_direct) {
            match Side::start(column, variant, disk_bytes) {
                Ok(side) => sides.push(side),
                Err(error) => report.absent(error.to_string()),
            }
        }
    }
    let contest = plan.contest();
    for (row, requests, target) in ROWS {
        let mut entrants = Vec::new();
        for side in &sides {
            let (name, work) = ((side.column.name(), side.variant), DiskGuest::work(&side.guest, requests));
            report.enter(&mut entrants, row, name, Ok(work), &[side.server.server()], Placement::TwoCores);
        }
        report.contest(row, &contest, entrants);
        let [ours, redo, other] = Column::ALL.map(Column::name);
        for Variant { name, is_direct, .. } in &variants {
            // With direct I/O, the disk dominates on both sides.
            let target = if *is_direct { 1.0 } else { target };
            report.compare_cells(row, (ours, name), (other, name), Some(target));
            let is_small_write = requests.way == Way::Write && requests.bytes == SMALL;
            report.compare_cells(row, (redo, name), (ours, name), is_small_write.then_some(REDO_TARGET));
        }
    }
    Placement::leave()?;
    report.condition_of(&contest);
    report.condition(format!(
        "raw images of {} MiB in {} and {}, written before and in memory; places at random",
        disk_bytes >> 20,
        plan.within.display(),
        disk.display()
    ));
    report.condition(
        "one queue of 128 with event index and indirect descriptors; the guest is a thread of the measuring process that polls on a core \
         of its own; it has accepted FLUSH and sends none; a transfer of 1 MiB is one descriptor",
    );
    Ok(report)
}

/// Location of the images, and their caching.
struct Variant {
    name: &'static str,
    place: TempDir,
    /// `true` for direct I/O.
    is_direct: bool,
}

/// A contestant: a server with its own image, and a guest.
struct Side<'a> {
    column: Column,
    variant: &'a str,
    // Fields drop in order: the guest before its server.
    guest: Rc<RefCell<DiskGuest>>,
    server: AtSocket,
}

impl<'a> Side<'a> {
    fn start(column: Column, variant: &'a Variant, disk_bytes: u64) -> Result<Self> {
        let at = |end: &str| variant.place.path().join(format!("{}.{end}", column.name()));
        let (image, socket) = (at("img"), at("sock"));
        fill(&image, disk_bytes)?;
        let server = match column {
            Column::Tombolo => virtio_blk::tombolo(&image, &socket, variant.is_direct)?,
            Column::RedoLog => virtio_blk::redo_log(&image, &at("overlay"), &socket)?,
            Column::StorageDaemon => virtio_blk::storage_daemon(&image, &socket, variant.is_direct)?,
        };
        let guest = DiskGuest::connect(server.socket(), Wait::Poll, DEPTH, LARGE, disk_bytes)?;
        Ok(Self { column, variant: variant.name, guest, server })
    }
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
