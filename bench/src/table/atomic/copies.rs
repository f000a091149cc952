//! Number of copies of each byte in user space, from the arguments of the client's system calls.

use std::ops::Range;

use super::test_host::{Serves, TestHost, WRITTEN};
use super::{BIODS, OURS};
use crate::drive::{Direction, Job, Kind};
use crate::error::Result;
use crate::measure::{Moved, MovedMeter, Spread};
use crate::nfs::Link;
use crate::nfs::work::Driver;
use crate::peer::Nfs;
use crate::report::{Ratio, Report, Unit};
use crate::sheet::{Sheet, sheet};

const OUT: &str = "copies of a byte that is written";
const IN: &str = "copies of a byte that is read";
const HEADS: &str = "bytes beside the file's own, per request";
const LIMIT: u32 = 8;
const PIECES: [(&str, usize); 2] = [("requests of 32 KiB", 32 << 10), ("requests of 1 MiB", 1 << 20)];
const ONE: f64 = 1.0;

pub(super) fn run(host: &TestHost<'_>) -> Result<Report> {
    let sheet: Sheet<'_> = host.described(sheet!(host.plan, "atomic-copies")?);
    let mut report = sheet.report();
    let server = host.server(Link::Loopback, Serves::Memory)?;
    for (column, kind) in [(OURS, Kind::Tombolo), (BIODS, Kind::Biods)] {
        for (variant, piece_bytes) in PIECES {
            let file_bytes = sheet.number("mib") << 20;
            let job = Job { direction: Direction::Write, limit: LIMIT, piece_bytes, file_bytes };
            let done = count(host, &server, (column, kind), (variant, job), &mut report);
            report.or_absent(&format!("{column}, {variant}"), done)?;
        }
    }
    Ok(sheet.finish(report))
}

fn count(
    host: &TestHost<'_>,
    server: &Nfs,
    (column, kind): (&str, Kind),
    (variant, job): (&str, Job),
    report: &mut Report,
) -> Result<()> {
    let file_bytes = job.file_bytes;
    for (direction, row) in [(Direction::Write, OUT), (Direction::Read, IN)] {
        let job = Job { direction, ..job };
        host.lay_out(Serves::Memory, &job)?;
        let mut driver = Driver::of_kind(kind, server, WRITTEN)?;
        let meter = MovedMeter::follow(driver.process())?;
        // Mounts, and finds the limit.
        driver.run(&job.to_string())?;
        meter.look_at(std::slice::from_ref(&memory(&mut driver, file_bytes)?));
        driver.run(&job.to_string())?;
        let Moved { sent_inside, sent_outside, received_inside, received_outside } = meter.moved();
        let (direct, beside) = match direction {
            Direction::Read => (received_inside, sent_outside + received_outside),
            _ => (sent_inside, sent_outside + received_outside),
        };
        let copied = (file_bytes as u64).saturating_sub(direct);
        let copies = copied as f64 / file_bytes as f64;
        report.add(row, variant, column, Unit::Times, copies);
        let heads = beside.saturating_sub(copied) as f64 / job.pieces() as f64;
        let heads_row = format!("{HEADS}: {}", if direction == Direction::Read { "READ" } else { "WRITE" });
        report.add(&heads_row, variant, column, Unit::Count, heads);
        if column == OURS {
            let share = direct as f64 / file_bytes as f64;
            let (other, target) = match direction {
                Direction::Read => ("all of the file, received straight into the program's memory", None),
                _ => ("all of the file, sent from the program's memory", Some(ONE)),
            };
            report.ratios.push(Ratio {
                row: row.to_owned(),
                ours: format!("{column}, {variant}"),
                other: other.to_owned(),
                spread: Spread::single(share),
                target,
            });
        }
    }
    Ok(())
}

/// Returns the range of the program's own memory.
fn memory(driver: &mut Driver, file_bytes: usize) -> Result<Range<u64>> {
    let (at, _) = driver.run(&format!("memory {file_bytes}"))?;
    let at = u64::try_from(at.as_nanos()).unwrap_or_default();
    Ok(at..at + file_bytes as u64)
}
