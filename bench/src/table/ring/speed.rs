//! Cost of an operation, compared with the limits of the machine: a bare cache line or futex between two
//! cores, and the system call on the served file.

use std::fs;
use std::path::{Path, PathBuf};

use tombolo_shm::doorbell::Mode;

use super::bare::Bare;
use super::endpoint::Endpoint;
use super::line::{alone, outstanding};
use super::native::native;
use super::server::{self, EndpointKind, LinkServer};
use super::session::{Operation, linked};
use super::{AT_ONCE, FILE, FILE_BYTES, LARGE_BYTES, Plan, WARM, targets};
use crate::error::{Doing, Result};
use crate::measure::{Entrant, Placement, Series, Work};
use crate::report::{Report, Unit};

/// Requests in flight in the last row.
const DEPTH: usize = 64;

pub const NULL: &str = "null request";
pub const ALONE: &str = "null request, link alone";
/// Attributes of an open file.
pub const GETATTR: &str = "getattr";
/// Two threads that poll continuously.
pub const CACHE_LINE: &str = "bare cache line";
pub const FUTEX: &str = "bare futex";
/// The same by a system call on the file.
pub const NATIVE: &str = "system call";
pub const COPIED: &str = "into or out of own memory";
pub const IN_PLACE: &str = "in place";
pub const MANY: &str = "64 outstanding getattr";

/// Sizes of reads and writes with their names. Small copied data travel in the message: see `border`.
pub const SIZES: [(&str, usize); 5] =
    [("256 B", 256), ("512 B", 512), ("1 KiB", 1024), ("4 KiB", 4096), ("1 MiB", 1 << 20)];

pub fn run(plan: &Plan) -> Result<Report> {
    let title = "An operation over a link in shared memory";
    let mut report = plan.report("ring", title);
    let host = TestHost::new(plan)?;
    let contest = plan.timed();
    let series = report.contest_of_rows(&contest, host.entrants()?);
    Placement::leave()?;
    targets::judge(&mut report);
    report.condition_of(&contest);
    conditions(&mut report, plan, &series);
    Ok(report)
}

struct TestHost {
    // Ended before its folder is removed.
    serving: LinkServer,
    file: PathBuf,
    _folder: tempfile::TempDir,
}

impl TestHost {
    fn new(plan: &Plan) -> Result<Self> {
        let folder = plan.folder()?;
        let (shared, file) = lay_out(folder.path())?;
        let serving = LinkServer::start(&shared, folder.path(), EndpointKind::Sockets)?;
        Ok(Self { serving, file, _folder: folder })
    }

    fn entrants(&self) -> Result<Vec<Entrant<'_>>> {
        let mut entrants = vec![
            self.entrant(NULL, CACHE_LINE, Bare::CacheLine.work()),
            self.entrant(NULL, FUTEX, Bare::Futex.work()),
        ];
        for mode in server::MODES {
            entrants.push(self.entrant(NULL, mode.name(), self.linked(mode, Operation::Null)));
            entrants.push(self.entrant(ALONE, mode.name(), alone(self.endpoint(mode))));
        }
        entrants.push(self.entrant(GETATTR, NATIVE, native(&self.file, Operation::Getattr)?));
        for mode in server::MODES {
            entrants.push(self.entrant(GETATTR, mode.name(), self.linked(mode, Operation::Getattr)));
        }
        for (size, bytes) in SIZES {
            let (read, write) = (format!("read, {size}"), format!("write, {size}"));
            for (row, operations) in [
                (read, [Operation::Read(bytes), Operation::ReadInPlace(bytes)]),
                (write, [Operation::Write(bytes), Operation::WriteInPlace(bytes)]),
            ] {
                entrants.push(self.entrant(&row, NATIVE, native(&self.file, operations[0])?));
                for (column, operation) in [COPIED, IN_PLACE].into_iter().zip(operations) {
                    entrants.push(self.entrant(&row, column, self.linked(Mode::Poll, operation)));
                }
            }
        }
        for mode in [Mode::Poll, Mode::Adaptive] {
            entrants.push(self.entrant(MANY, mode.name(), outstanding(self.endpoint(mode), DEPTH)));
        }
        Ok(entrants)
    }

    fn entrant(&self, row: &str, column: &str, work: Work<'static>) -> Entrant<'static> {
        Entrant::new((row, column), work, &[self.serving.id()], Placement::TwoCores)
    }

    fn endpoint(&self, mode: Mode) -> Endpoint {
        self.serving.endpoint(mode)
    }

    fn linked(&self, mode: Mode, operation: Operation) -> Work<'static> {
        linked(self.endpoint(mode), operation)
    }
}

/// Creates the served directory with the file; returns both.
pub fn lay_out(folder: &Path) -> Result<(PathBuf, PathBuf)> {
    let shared = folder.join("shared");
    fs::create_dir(&shared).doing_to("make", &shared)?;
    let file = shared.join(FILE);
    fs::write(&file, vec![b'x'; FILE_BYTES]).doing_to("write", &file)?;
    Ok((shared, file))
}

fn conditions(report: &mut Report, plan: &Plan, series: &[Series]) {
    report.condition(format!(
        "caller and server on a core of their own each, the server in a process of its own, over sealed memory handed over at a socket; it \
         serves local-dir in {}; bare: two threads of one process",
        plan.within.display()
    ));
    report.condition(format!(
        "{AT_ONCE} operations between two looks at the clock, but one from {} KiB on; each turn has a link of its own, and {WARM} operations \
         that are not timed",
        LARGE_BYTES >> 10
    ));
    report.condition(
        "link alone: without the library above the line. Both sides wait alike; reads and writes poll. In place: data lie where the server put them, or were put together where it reads them",
    );
    for one in series.iter().filter(|one| one.bytes.is_none() && !one.per_second) {
        let quantiles = [0.01, 0.5, 0.99].map(|part| Unit::Nanoseconds.text(one.quantile_ns(part)));
        let (row, column) = &one.name;
        report.condition(format!("{row}, {column}: p1, p50, p99 of all: {}", quantiles.join(", ")));
    }
}

#[cfg(test)]
mod tests {
    use super::super::session;
    use super::*;
    use crate::error::Error;
    use crate::measure::Clock;

    #[test]
    fn every_operation_works_in_every_wait_mode() {
        let folder = tempfile::tempdir().unwrap();
        let (shared, file) = lay_out(folder.path()).unwrap();
        let _listeners = server::listen(&shared, folder.path(), EndpointKind::Sockets).unwrap();
        for mode in server::MODES {
            let endpoint = server::endpoint(folder.path(), EndpointKind::Sockets, mode);
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
        let _listeners = server::listen(&shared, folder.path(), EndpointKind::Sockets).unwrap();
        fs::write(&file, [b'x'; 100]).unwrap();
        let endpoint = server::endpoint(folder.path(), EndpointKind::Sockets, Mode::Event);
        let session = session::Session::begin(&endpoint, 4096).unwrap();
        for operation in [Operation::Read(4096), Operation::ReadInPlace(4096)] {
            assert!(matches!(session.ask(operation), Err(Error::Wrong { .. })), "{operation:?}");
        }
        let mut native = native(&file, Operation::Read(4096)).unwrap();
        assert!(native.run(1, &mut Clock::new()).is_err());
    }
}
