//! `stream`: sequential read of one large remote file.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::Path;
use std::time::Instant;

use super::Plan;
use super::site::{Column, Site, folder};
use super::twice::{Job, describe, measure};
use crate::error::{Doing, Error, Result};
use crate::measure::go_on;
use crate::report::Report;
use crate::sheet::{Sheet, sheet};

const FILE: &str = "large";
const PIECE_BYTES: usize = 1 << 20;

pub fn run(plan: &Plan) -> Result<Report> {
    let mut sheet: Sheet<'_, String, Column> = sheet!(plan, "gvfs-stream")?;
    let given = plan.bytes.map(|bytes| bytes.div_ceil(PIECE_BYTES as u64) as usize);
    let pieces = given.unwrap_or(sheet.number("pieces"));
    describe(&mut sheet);
    sheet.set("pieces", &pieces);
    let mut report = sheet.report();
    let (folder, shared) = folder(plan)?;
    fill(&shared.join(FILE), pieces)?;
    let mut site = Site::new(plan, &shared, folder.path())?;
    site.add_lan(&mut report);
    let bytes = (pieces * PIECE_BYTES) as u64;
    let read = |root: &Path| {
        let begun = Instant::now();
        read_all(&root.join(FILE), bytes)?;
        Ok(vec![begun.elapsed()])
    };
    let job = Job { rows: &["read"], run: &read, bytes: Some(bytes), bare_bytes: bytes };
    measure(&mut report, &site, &plan.columns(&sheet.columns, Column::id)?, sheet.rounds(), &job)?;
    Ok(site.described(sheet.finish(report)))
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
