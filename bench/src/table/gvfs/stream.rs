//! `stream`: sequential read of one large remote file.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::Path;
use std::time::Instant;

use super::Plan;
use super::site::{Column, Site, folder};
use super::twice::{COLD, Job, WARM, conditions, measure, rounds};
use crate::args::GvfsArgs;
use crate::error::{Doing, Error, Result};
use crate::measure::go_on;
use crate::report::Report;

const ROW: &str = "read";
const FILE: &str = "large";
/// 1 GiB, or 8 MiB, in pieces of 1 MiB.
const PIECE_BYTES: usize = 1 << 20;
const PIECES: usize = 1024;
const QUICK_PIECES: usize = 8;
const ROUNDS: usize = 3;
const COLD_TARGET: f64 = 0.97;
/// Minimum speed relative to the WAN link.
const LAN_TARGET: f64 = 8.0;

const COLUMNS: [Column; 9] = [
    Column::Local,
    Column::Dir,
    Column::Bare,
    Column::Nfs,
    Column::Exclusive,
    Column::CloseToOpen,
    Column::SecondLevel,
    Column::Sshfs,
    Column::Rclone,
];

pub fn run(plan: &Plan, wanted: &GvfsArgs) -> Result<Report> {
    let pieces = wanted
        .bytes
        .map_or(plan.scaled(PIECES, QUICK_PIECES), |bytes| bytes.div_ceil(PIECE_BYTES as u64) as usize);
    let mut report = plan.report("gvfs-stream", &format!("A remote file of {pieces} MiB, read in order"));
    let (folder, shared) = folder(wanted)?;
    fill(&shared.join(FILE), pieces)?;
    let mut site = Site::new(plan, wanted, &shared, folder.path())?;
    site.add_lan(&mut report);
    let bytes = (pieces * PIECE_BYTES) as u64;
    let read = |root: &Path| {
        let begun = Instant::now();
        read_all(&root.join(FILE), bytes)?;
        Ok(vec![begun.elapsed()])
    };
    let rounds = rounds(plan, ROUNDS);
    let job = Job { rows: &[ROW], run: &read, bytes: Some(bytes), bare_bytes: bytes };
    measure(&mut report, &site, &wanted.columns(&COLUMNS), rounds, &job)?;
    let cell = |column: Column, run| (column.name(), run);
    for (ours, other, target) in [
        (cell(Column::Exclusive, COLD), cell(Column::Bare, COLD), Some(COLD_TARGET)),
        (cell(Column::CloseToOpen, COLD), cell(Column::Bare, COLD), None),
        (cell(Column::Nfs, COLD), cell(Column::Bare, COLD), None),
        (cell(Column::SecondLevel, COLD), cell(Column::Exclusive, COLD), Some(LAN_TARGET)),
        (cell(Column::Exclusive, WARM), cell(Column::Dir, WARM), None),
    ] {
        report.compare_cells(ROW, ours, other, target);
    }
    conditions(&mut report, rounds, &wanted.disk);
    report.condition("read(2) of 1 MiB at a time, by one thread".to_owned());
    site.describe(&mut report);
    Ok(report)
}

/// Writes a file of pieces that all differ, and syncs it.
pub fn fill(path: &Path, pieces: usize) -> Result<()> {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut piece = vec![0; PIECE_BYTES];
    let mut file = BufWriter::new(File::create_new(path).doing_to("create", path)?);
    for _ in 0..pieces {
        go_on()?;
        rng.fill(&mut piece);
        file.write_all(&piece).doing_to("write", path)?;
    }
    file.flush().and_then(|()| file.get_ref().sync_all()).doing_to("write", path)
}

/// Reads a file of this size.
pub fn read_all(path: &Path, bytes: u64) -> Result<()> {
    let (mut file, mut buffer, mut got) = (File::open(path).doing_to("open", path)?, vec![0; PIECE_BYTES], 0);
    loop {
        go_on()?;
        match file.read(&mut buffer).doing_to("read", path)? {
            0 if got == bytes => return Ok(()),
            0 => return Err(Error::Wrong { what: "read".to_owned(), answer: format!("{got} bytes") }),
            count => got += count as u64,
        }
    }
}
