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
use crate::report::{Figure, Ratio, Report, Unit};

const OUT: &str = "copies of a byte that is written";
const IN: &str = "copies of a byte that is read";
const HEADS: &str = "bytes beside the file's own, per request";
const FILE_BYTES: usize = 32 << 20;
const LIMIT: u32 = 8;
const PIECES: [(&str, usize); 2] = [("requests of 32 KiB", 32 << 10), ("requests of 1 MiB", 1 << 20)];
const ONE: f64 = 1.0;

pub(super) fn run(host: &TestHost<'_>) -> Report {
    let mut report = host.report("atomic-copies", "Copies of file data in user space");
    match host.server(Link::Loopback, Serves::Memory) {
        Ok(server) => {
            for (column, kind) in [(OURS, Kind::Tombolo), (BIODS, Kind::Biods)] {
                for (variant, piece_bytes) in PIECES {
                    let counted = count(host, &server, (column, kind), (variant, piece_bytes), &mut report);
                    if let Err(error) = counted {
                        report.absent(format!("{column}, {variant}: {error}"));
                    }
                }
            }
        }
        Err(error) => report.absent(error.to_string()),
    }
    report.condition(format!(
        "a file of {} MiB, {LIMIT} requests in flight, while all system calls of the client are followed (ptrace(2)). A byte that the kernel takes from \
         the program's own memory was not copied out, one that it puts there was not copied in; every other byte of the file was copied (once is \
         assumed). `{HEADS}`: everything that is moved and is not the file's. Nothing is timed",
        FILE_BYTES >> 20
    ));
    report
}

fn count(
    host: &TestHost<'_>,
    server: &Nfs,
    (column, kind): (&str, Kind),
    (variant, piece_bytes): (&str, usize),
    report: &mut Report,
) -> Result<()> {
    let file_bytes = host.plan.scaled(FILE_BYTES, 2 << 20);
    for (direction, row) in [(Direction::Write, OUT), (Direction::Read, IN)] {
        let job = Job { direction, limit: LIMIT, piece_bytes, file_bytes };
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
        report.figures.push(Figure::single(row, variant, column, Unit::Times, copies));
        let heads = beside.saturating_sub(copied) as f64 / job.pieces() as f64;
        let heads_row = format!("{HEADS}: {}", if direction == Direction::Read { "READ" } else { "WRITE" });
        report.figures.push(Figure::single(&heads_row, variant, column, Unit::Count, heads));
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
