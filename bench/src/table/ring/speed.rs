//! Cost of an operation, compared with the limits of the machine: a bare cache line or futex between two
//! cores, and the system call on the served file.

use std::fs;
use std::path::{Path, PathBuf};

use tombolo_shm::doorbell::Mode;

use super::bare::Bare;
use super::endpoint::Endpoint;
use super::line::{alone, outstanding};
use super::native::native;
use super::session::{Operation, linked};
use super::{FILE, FILE_BYTES, Plan, servers};
use crate::error::{Doing, Result};
use crate::measure::{Entrant, Placement, Series, Work};
use crate::peer::Shm;
use crate::report::{Figure, Report, Unit};
use crate::sheet::{Sheet, sheet};

/// Requests in flight in the last row.
const DEPTH: usize = 64;

const NULL: &str = "null request";
const ALONE: &str = "null request, link alone";
/// Attributes of an open file.
const GETATTR: &str = "getattr";
/// The same by a system call on the file.
const NATIVE: &str = "system call";
pub const COPIED: &str = "into or out of own memory";
pub const IN_PLACE: &str = "in place";
const MANY: &str = "64 outstanding getattr";
/// Target of operations per second with many in flight.
const MANY_TARGET: f64 = 2e6;

/// Sizes of reads and writes with their names. Small copied data travel in the message: see `border`.
const SIZES: [(&str, usize); 5] =
    [("256 B", 256), ("512 B", 512), ("1 KiB", 1024), ("4 KiB", 4096), ("1 MiB", 1 << 20)];

pub fn run(plan: &Plan) -> Result<Report> {
    let sheet: Sheet<'_> = sheet!(plan, "ring")?;
    let mut report = sheet.report();
    let host = TestHost::new(plan)?;
    let series = report.contest_of_rows(&plan.timed(), host.entrants()?);
    Placement::leave()?;
    let target = Figure::single(MANY, "", "2 M/s", Unit::PerSecond, MANY_TARGET);
    for (mode, wanted) in [(Mode::Poll, Some(1.0)), (Mode::Adaptive, None)] {
        let ours = report.figure(MANY, mode.name(), "").cloned();
        report.compare(ours.as_ref(), Some(&target), wanted);
    }
    let mut report = sheet.finish(report);
    for one in series.iter().filter(|one| one.bytes.is_none() && !one.per_second) {
        let (row, column) = &one.name;
        report.condition(format!("{row}, {column}: p1, p50, p99 of all: {}", quantiles(one)));
    }
    Ok(report)
}

/// Returns the first, 50th and 99th percentile of all operations.
pub fn quantiles(series: &Series) -> String {
    [0.01, 0.5, 0.99].map(|part| Unit::Nanoseconds.text(series.quantile_ns(part))).join(", ")
}

struct TestHost {
    // Ended before their folder is removed.
    servers: Vec<(Mode, Shm)>,
    file: PathBuf,
    _folder: tempfile::TempDir,
}

impl TestHost {
    fn new(plan: &Plan) -> Result<Self> {
        let folder = plan.folder()?;
        let (shared, file) = lay_out(folder.path())?;
        Ok(Self { servers: servers(&shared, folder.path())?, file, _folder: folder })
    }

    fn entrants(&self) -> Result<Vec<Entrant<'static>>> {
        let mut entrants = vec![
            local(NULL, "bare cache line", Bare::CacheLine.work()),
            local(NULL, "bare futex", Bare::Futex.work()),
        ];
        for side in &self.servers {
            entrants.push(entrant(NULL, side.0.name(), side, |endpoint| linked(endpoint, Operation::Null)));
            entrants.push(entrant(ALONE, side.0.name(), side, alone));
        }
        entrants.push(local(GETATTR, NATIVE, native(&self.file, Operation::Getattr)?));
        for side in &self.servers {
            entrants.push(entrant(GETATTR, side.0.name(), side, |it| linked(it, Operation::Getattr)));
        }
        let polling = self.servers.iter().find(|(mode, _)| *mode == Mode::Poll);
        for (size, bytes) in SIZES {
            let (read, write) = (format!("read, {size}"), format!("write, {size}"));
            for (row, operations) in [
                (read, [Operation::Read(bytes), Operation::ReadInPlace(bytes)]),
                (write, [Operation::Write(bytes), Operation::WriteInPlace(bytes)]),
            ] {
                entrants.push(local(&row, NATIVE, native(&self.file, operations[0])?));
                for (column, operation) in [COPIED, IN_PLACE].into_iter().zip(operations) {
                    entrants
                        .extend(polling.map(|side| entrant(&row, column, side, |it| linked(it, operation))));
                }
            }
        }
        for side in self.servers.iter().filter(|(mode, _)| *mode != Mode::Event) {
            entrants.push(entrant(MANY, side.0.name(), side, |endpoint| outstanding(endpoint, DEPTH)));
        }
        Ok(entrants)
    }
}

/// Returns a contestant with a server that waits in this mode.
fn entrant(
    row: &str,
    column: &str,
    (mode, server): &(Mode, Shm),
    work: impl FnOnce(Endpoint) -> Work<'static>,
) -> Entrant<'static> {
    let work = work(Endpoint::of(server, *mode));
    Entrant::new((row, column), work, &[server.server()], Placement::TwoCores)
}

fn local(row: &str, column: &str, work: Work<'static>) -> Entrant<'static> {
    Entrant::new((row, column), work, &[], Placement::TwoCores)
}

/// Creates the served directory with the file; returns both.
pub fn lay_out(folder: &Path) -> Result<(PathBuf, PathBuf)> {
    let shared = folder.join("shared");
    fs::create_dir(&shared).doing_to("make", &shared)?;
    let file = shared.join(FILE);
    fs::write(&file, vec![b'x'; FILE_BYTES]).doing_to("write", &file)?;
    Ok((shared, file))
}

#[cfg(test)]
mod tests {
    use super::super::{MODES, session, test_server};
    use super::*;
    use crate::error::Error;
    use crate::measure::Clock;

    #[test]
    fn every_operation_works_in_every_wait_mode() {
        let folder = tempfile::tempdir().unwrap();
        let (shared, file) = lay_out(folder.path()).unwrap();
        for mode in MODES {
            let (endpoint, _listener) = test_server::listen(&shared, &folder.path().join(mode.name()), mode);
            let session = session::Session::begin(&endpoint, 1 << 20).unwrap();
            session.ask(Operation::Null).unwrap();
            session.ask(Operation::Getattr).unwrap();
            for (_, bytes) in SIZES {
                for operation in
                    [Operation::Read, Operation::ReadInPlace, Operation::Write, Operation::WriteInPlace]
                {
                    session.ask(operation(bytes)).unwrap();
                }
            }
            alone(endpoint.clone()).run(20, &mut Clock::new()).unwrap();
            let mut clock = Clock::new();
            outstanding(endpoint, DEPTH).run(200, &mut clock).unwrap();
            assert_eq!(clock.count(), 256, "{mode}: whole windows");
        }
        // Writes went to the file and within its size.
        assert_eq!(fs::metadata(&file).unwrap().len(), FILE_BYTES as u64);
    }

    #[test]
    fn short_read_yields_no_figure() {
        let folder = tempfile::tempdir().unwrap();
        let (shared, file) = lay_out(folder.path()).unwrap();
        let (endpoint, _listener) = test_server::listen(&shared, &folder.path().join("event"), Mode::Event);
        fs::write(&file, [b'x'; 100]).unwrap();
        let session = session::Session::begin(&endpoint, 4096).unwrap();
        for operation in [Operation::Read(4096), Operation::ReadInPlace(4096)] {
            assert!(matches!(session.ask(operation), Err(Error::Wrong { .. })), "{operation:?}");
        }
        let mut native = native(&file, Operation::Read(4096)).unwrap();
        assert!(native.run(1, &mut Clock::new()).is_err());
    }
}
