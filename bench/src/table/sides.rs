//! Contestants that take part in every row of a table.

use std::any::Any;

use serde::de::DeserializeOwned;

use crate::error::Result;
use crate::measure::{Contest, Placement, Work};
use crate::report::Report;
use crate::sheet::{Row, Sheet};

/// A server, and the operations of its client.
pub struct Side<W> {
    pub column: String,
    pub variant: String,
    pub place: Option<Placement>,
    pub server: u32,
    /// Function that returns the operation of a row.
    pub work: Box<dyn Fn(W) -> Result<Work<'static>>>,
    /// Server and files, which end after the client.
    pub _kept: Box<dyn Any>,
}

/// Runs the contest of each row among the sides that could be started, and completes the report.
pub fn measure<W: Copy + DeserializeOwned, C: DeserializeOwned>(
    sheet: Sheet<'_, Row<W>, C>,
    contest: &Contest,
    sides: Vec<Result<Side<W>>>,
) -> Result<Report> {
    let mut report = sheet.report();
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
        report.contest(row, contest, entrants);
    }
    Placement::leave()?;
    Ok(sheet.finish(report))
}
