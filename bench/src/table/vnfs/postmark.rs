//! `postmark`: Postmark's job on the directory itself, over NFS, over a link alone, and over a link with
//! change notifications.

use std::path::Path;

use serde::Deserialize;

use super::{Plan, place};
use crate::error::Result;
use crate::files::Postmark;
use crate::measure::{Clock, Entrant, Placement, Work};
use crate::report::Report;
use crate::sheet::{Row, Sheet, sheet};
use crate::table::mounts::{Place, Way};

/// Job of a row.
#[derive(Deserialize)]
struct Mail {
    /// Maximum file size.
    bytes_max: usize,
    /// Number of reads per append.
    reads: u32,
}

/// Time that VNFS saves compared with NFS, in its paper's two runs.
const PAPER: &str = "the paper's VNFS: −46 % and −37 %";

pub fn run(plan: &Plan) -> Result<Report> {
    let mut sheet: Sheet<'_, Row<Mail>, Way> = sheet!(plan, "vnfs-postmark")?;
    let files = plan.files.unwrap_or(sheet.number("files"));
    sheet.set("files", &files);
    let mut report = sheet.report();
    let (_folder, place) = place(plan)?;
    let contest = sheet.contest(plan.timed());
    let ways = plan.columns(&sheet.columns, Way::id)?;
    Placement::leave()?;
    for Row { name, work: Mail { bytes_max, reads } } in &sheet.rows {
        let job = Postmark { files, transactions: files, bytes_max: *bytes_max, reads: *reads };
        let entrant = |way: Way| {
            let name = way.name.clone();
            Entrant::new((&name, ""), once(&place, way, job), &[], None::<Placement>)
        };
        report.contest(name, &contest, ways.iter().cloned().map(entrant).collect());
        ["shm:, push", "shm:, strict"].into_iter().for_each(|ours| saved(&mut report, name, ours));
    }
    Ok(sheet.finish(report))
}

fn once(place: &Place, way: Way, job: Postmark) -> Work<'static> {
    let place = place.clone();
    let run = move |_, clock: &mut Clock| {
        let side = place.side(&way)?;
        clock.time(|| job.run(&side.path(Path::new("job"))))
    };
    Work::new(run).count_max(1)
}

/// Reports the time of a column compared with that over NFS, as the paper does.
fn saved(report: &mut Report, row: &str, ours: &str) {
    let figures = report.figure(row, ours, "").zip(report.figure(row, "nfs:, auto", ""));
    let Some(times) = figures.map(|(ours, nfs)| ours.spread.median / nfs.spread.median) else { return };
    let more = format!("{:+.0} %", (times - 1.0) * 100.0).replace('-', "−");
    report.target(&format!("{row}, {ours}: time against NFS"), PAPER, more, None);
}
