//! `postmark`: Postmark's job on the directory itself, over NFS, over a link alone, and over a link with
//! change notifications.

use std::fs;
use std::path::Path;

use super::Plan;
use super::sides::{Column, Place};
use crate::args::VnfsArgs;
use crate::error::{Doing, Result};
use crate::files::Postmark;
use crate::measure::{Clock, Contest, Entrant, Placement, Work};
use crate::report::Report;

/// Rows: maximum file size, and number of reads per append.
const ROWS: [(&str, usize, u32); 4] = [
    ("512 B to 9.7 KB, read and append 1:1", 9_700, 1),
    ("512 B to 9.7 KB, read and append 4:1", 9_700, 4),
    ("512 B to 40 KB, read and append 1:1", 40_000, 1),
    ("512 B to 40 KB, read and append 4:1", 40_000, 4),
];
const FILES: usize = 10_000;
const QUICK_FILES: usize = 50;
const ROUNDS: usize = 3;
/// Time that VNFS saves compared with NFS, in its paper's two runs.
const PAPER: &str = "the paper's VNFS: −46 % and −37 %";

pub fn run(plan: &Plan, wanted: &VnfsArgs) -> Result<Report> {
    let files = wanted.files.unwrap_or(plan.scaled(FILES, QUICK_FILES));
    let title = format!("Postmark's job: {files} files, {files} transactions");
    let mut report = plan.report("vnfs-postmark", &title);
    let folder = crate::table::folder(&wanted.disk)?;
    let place = Place { shared: folder.path().join("shared"), beside: folder.path().to_owned() };
    fs::create_dir(&place.shared).doing_to("make", &place.shared)?;
    let contest = Contest { rounds: plan.rounds_of(ROUNDS), ..plan.timed() };
    Placement::leave()?;
    for (row, bytes_max, reads) in ROWS {
        let job = Postmark { files, transactions: files, bytes_max, reads };
        let entrant = |column: Column| {
            Entrant::new((column.name(), ""), once(&place, column, job), &[], None::<Placement>)
        };
        report.contest(row, &contest, wanted.columns().into_iter().map(entrant).collect());
        compare(&mut report, row);
    }
    report.condition_of(&contest);
    report.condition(format!(
        "{files} files are made in one directory below {}; in each of as many transactions a file is made or one removed (1:1), and one is read or one is \
         added to; at the end all are removed. One thread, plain system calls of 4 KiB at most, the same random numbers each time; no process is pinned",
        wanted.disk.display()
    ));
    report.condition(format!(
        "every turn has servers and a mount of its own, which begin before the clock does: `{}`: our mount of our server over loopback TCP, whose \
         promise is that what a close wrote is on stable storage; `{}`: the link alone; `{}`: the server has --host-watch. Mounts and servers are \
         processes of their own",
        Column::Nfs.name(),
        Column::Strict.name(),
        Column::Push.name(),
    ));
    Ok(report)
}

fn once(place: &Place, column: Column, job: Postmark) -> Work<'static> {
    let place = place.clone();
    let run = move |_, clock: &mut Clock| {
        let side = place.fresh(column)?;
        clock.time(|| job.run(&side.path(Path::new("job"))))
    };
    Work::new(run).count_max(1)
}

fn compare(report: &mut Report, row: &str) {
    let [local, nfs, strict, push] = Column::ALL.map(Column::name);
    for ours in [push, strict] {
        for other in [nfs, local] {
            report.compare_cells(row, (ours, ""), (other, ""), None);
        }
        let figures = report.figure(row, ours, "").zip(report.figure(row, nfs, ""));
        let Some((ours_ns, nfs_ns)) = figures.map(|(ours, nfs)| (ours.spread.median, nfs.spread.median))
        else {
            continue;
        };
        let more = format!("{:+.0} %", (ours_ns / nfs_ns - 1.0) * 100.0).replace('-', "−");
        report.target(&format!("{row}, {ours}: time against NFS"), PAPER, more, None);
    }
    report.compare_cells(row, (push, ""), (strict, ""), None);
}
