//! `ring`: shared-memory links, in parts, each with its own report.
//!
//! The server is `tombolo serve`. Server and client wait in the same mode, so there is one server for each
//! mode that a part uses. Unless a part or a row of its sheet says otherwise, the client is
//! `back/vrpc-client`. A sheet of [`Cell`]s is one interleaved contest, in which server and caller have a
//! core each by default; of the other parts, only `mounts` and `guest` pin threads.
//!
//! To add a part: its sheet, `bench/tables/ring-PART.toml`; a function that adds the sheet's figures to a
//! report; a line with both in [`PARTS`]; its rows in `docs/benchmarks.md`. Missing prerequisites are
//! reported as [`Error::Absent`], and the part is skipped. With [`Plan::quick`] a part takes a second or two.
//!
//! Reading order: [`session`]; [`cells`], the contests that a sheet lists; the other parts in any order.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

pub use guest::serve_orders;
use serde::{Deserialize, Deserializer, de};
pub use session::Endpoint;
use tombolo_core::Answer;
use tombolo_core::fs::Write;
use tombolo_host_links::shared_memory::MemoryLocation;
use tombolo_shm::doorbell::Mode;

use crate::error::{Doing, Error, OrWrong, Result, same, wrong};
use crate::files::Place;
use crate::measure::{Clock, CostMeter, Entrant, Moved, MovedMeter, Placement, Series, go_on, mappings};
use crate::peer::AtSocket;
use crate::report::{Figure, Report, Unit};
use crate::sheet::{Named, Sheet, part};
use crate::table::{Part, Plan};
use session::{At, Operation, Session, alone, bare, linked, native, outstanding};

mod guest;
mod nfs;
mod session;
#[cfg(test)]
mod test_server;

/// All parts in order, by name.
pub const PARTS: &[(&str, Part)] = &[
    ("speed", part!("ring", speed)),
    ("rest", part!("ring-rest", rest)),
    ("table-6.1", part!("ring-table-6.1", plain)),
    ("mounts", part!("ring-mounts", super::mounts::over_links)),
    ("copies", part!("ring-copies", copies)),
    ("chain", part!("ring-chain", chain)),
    ("guest", part!("ring-guest", guest::run)),
    ("guest-bell", part!("ring-guest-bell", guest::bell)),
    ("nfs", part!("ring-nfs", plain)),
];

/// Name of the file that is read and written.
const FILE: &str = "data";
const FILE_BYTES: usize = 1 << 20;

/// Waiting modes that are measured.
const MODES: [Mode; 3] = [Mode::Poll, Mode::Event, Mode::Adaptive];
/// Waiting modes in which an idle side sleeps.
const SLEEPERS: [Mode; 2] = [Mode::Event, Mode::Adaptive];

/// Creates a directory to serve, with [`FILE`] in it; returns the file's path too.
fn served(within: &Path) -> Result<(Place, PathBuf)> {
    let place = Place::within(within)?;
    let file = place.shared().join(FILE);
    fs::write(&file, vec![b'x'; FILE_BYTES]).doing_to("write", &file)?;
    Ok((place, file))
}

/// Number of short operations per reading of the clock.
const AT_ONCE: u64 = 8;
/// Maximum number of operations of the untimed warm-up of a turn.
const WARM: u64 = 100;
/// Size from which an operation is timed individually and reported as a rate.
const LARGE_BYTES: usize = 64 << 10;

/// Returns how many operations of this size are timed together.
fn at_once(bytes: usize) -> u64 {
    if bytes < LARGE_BYTES { AT_ONCE } else { 1 }
}

/// Returns the bytes per operation, if its figure is a rate.
fn rated(bytes: usize) -> Option<u64> {
    (bytes >= LARGE_BYTES).then_some(bytes as u64)
}

/// Runs an operation at least `count` times, `at_once` per reading of the clock, after a warm-up.
#[inline]
fn timed_by(at_once: u64, count: u64, clock: &mut Clock, mut once: impl FnMut() -> Result<()>) -> Result<()> {
    for _ in 0..count.min(WARM) {
        once()?;
    }
    clock.start();
    for _ in 0..count.div_ceil(at_once).max(1) {
        for _ in 0..at_once {
            once()?;
        }
        clock.lap_of(at_once);
    }
    Ok(())
}

/// Cell of a sheet: one contestant. The turns of all cells are interleaved.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cell {
    name: String,
    column: String,
    #[serde(default)]
    by: By,
    /// Way in which client and server wait; of a cell without a server, unused.
    #[serde(default = "polling", deserialize_with = "mode")]
    mode: Mode,
    #[serde(default = "apart")]
    place: Placement,
    #[serde(default)]
    work: Operation,
}

/// Way in which an operation is requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum By {
    /// A session of `back/vrpc-client`, over a link.
    #[default]
    Library,
    /// Null requests on a link alone.
    Link,
    /// Many requests in flight on a link alone.
    Outstanding,
    /// Messages of NFS version 3, over a link.
    Messages,
    /// A system call on the served file.
    SystemCall,
    /// A number that two threads pass to each other through memory; both poll.
    CacheLine,
    /// A number that two threads pass to each other through memory; both sleep with futexes.
    Futex,
}

impl Named for Cell {
    fn name(&self) -> &str {
        &self.name
    }
}

fn polling() -> Mode {
    Mode::Poll
}

fn apart() -> Placement {
    Placement::TwoCores
}

fn mode<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Mode, D::Error> {
    String::deserialize(from)?.parse().map_err(de::Error::custom)
}

/// Measures all cells of a sheet, with a server for each way to wait.
fn cells(sheet: &Sheet<'_, Cell>, report: &mut Report) -> Result<Vec<Series>> {
    let plan = sheet.plan;
    let (place, file) = served(&plan.within)?;
    let start = |mode: Mode| {
        // NFS clients, unlike those of vrpc, are squashed by default, which would cost them extra work.
        let options = ["--doorbell", mode.name(), "--squash", "none"];
        Ok((mode, AtSocket::links(&place.shared(), &place.beside(mode.name()), &options)?))
    };
    let is_used = |mode: &Mode| sheet.rows.iter().any(|cell| cell.mode == *mode);
    let servers = MODES.into_iter().filter(is_used).map(start).collect::<Result<Vec<_>>>()?;
    let mut entrants = Vec::new();
    for Cell { name, column, by, mode, place, work } in &sheet.rows {
        let Some((_, server)) = servers.iter().find(|(other, _)| other == mode) else { continue };
        let (endpoint, mut processes) = (Endpoint::of(server, *mode), vec![server.server.id()]);
        let work = match by {
            By::Library => linked(endpoint, *work),
            By::Link => alone(endpoint),
            By::Outstanding => outstanding(endpoint, DEPTH),
            By::Messages => nfs::messages(endpoint, server.export.clone(), *work),
            By::SystemCall | By::CacheLine | By::Futex => {
                processes.clear();
                if *by == By::SystemCall { native(&file, *work)? } else { bare(*by == By::Futex) }
            }
        };
        entrants.push(Entrant::new((name, column), work, &processes, *place));
    }
    Ok(report.contest_of_rows(&sheet.contest(plan.timed()), entrants))
}

/// Measures a sheet that consists of cells only. `ring-table-6.1`: null requests by waiting mode, compared
/// with Table 6.1 of the FSVA paper. `ring-nfs`: the native layout compared with NFS version 3 messages.
fn plain(sheet: &mut Sheet<'_, Cell>, report: &mut Report) -> Result<()> {
    cells(sheet, report).map(drop)
}

/// Number of requests in flight of [`By::Outstanding`].
const DEPTH: usize = 64;
/// Row of [`By::Outstanding`].
const MANY: &str = "64 outstanding getattr";
/// Target for [`MANY`], in operations per second.
const MANY_TARGET: f64 = 2e6;

/// Measures the cost of an operation, compared with the limits of the machine: a bare cache line or futex
/// between two cores, and the system call on the served file.
fn speed(sheet: &mut Sheet<'_, Cell>, report: &mut Report) -> Result<()> {
    let series = cells(sheet, report)?;
    let target = Figure::single(MANY, "", "2 M/s", Unit::PerSecond, MANY_TARGET);
    for (mode, wanted) in [(Mode::Poll, Some(1.0)), (Mode::Adaptive, None)] {
        let ours = report.figure(MANY, mode.name(), "").cloned();
        report.compare(ours.as_ref(), Some(&target), wanted);
    }
    for one in series.iter().filter(|one| one.bytes.is_none() && !one.per_second) {
        let (row, column) = &one.name;
        let quantiles = [0.01, 0.5, 0.99].map(|part| Unit::Nanoseconds.text(one.quantile_ns(part)));
        report.condition(format!("{row}, {column}: p1, p50, p99 of all: {}", quantiles.join(", ")));
    }
    Ok(())
}

const SERVER: &str = "at rest: the server's share of a processor";
const CALLER: &str = "at rest: the caller's share of a processor";
/// Column of a server without links.
const NO_LINK: &str = "no link";

/// Kinds of endpoints: a socket, which passes doorbells; and a file as shared memory, without doorbells.
const KINDS: [&str; 2] = ["doorbell", "no doorbell"];
/// Size of the file of a "no doorbell" endpoint.
const MEMORY_BYTES: u64 = 16 << 20;

/// Duration of the idle measurement.
const SPAN: Duration = Duration::from_secs(5);
/// Time after the last request until a link counts as idle.
const SETTLE: Duration = Duration::from_millis(200);
/// Target for an idle link with a doorbell: processor share of both sides together, in percent.
const NOTHING: f64 = 0.05;
/// Target for an idle link without a doorbell: processor share of both sides together, in percent.
const SILENT_MAX: f64 = 1.0;

/// Measures the cost of an idle link: with a doorbell that wakes a sleeper, and without one, where a sleeper
/// polls at doubling intervals.
fn rest(sheet: &mut Sheet<'_>, report: &mut Report) -> Result<()> {
    let plan = sheet.plan;
    sheet.set("span_s", &span(plan).as_secs_f64());
    let (place, _) = served(&plan.within)?;
    let shared = place.shared();
    let mut servers = Vec::new();
    for (kind, mode) in KINDS.into_iter().flat_map(|kind| SLEEPERS.map(|mode| (kind, mode))) {
        let column = column(mode, kind);
        let place = place.beside(&column.replace([' ', ','], "-"));
        let (server, at) = match kind {
            "doorbell" => (AtSocket::waiting(&shared, &place, mode)?, At::Socket(place)),
            _ => {
                let server = AtSocket::over_memory(&shared, (&place, MEMORY_BYTES), mode, None)?;
                (server, At::Memory(MemoryLocation::File(place)))
            }
        };
        servers.push(Side { kind, column, server, endpoint: Endpoint { at, mode, bell: None } });
    }
    for _ in 0..plan.scaled(sheet.number("idle_rounds"), 1) {
        idle(report, &servers, plan)?;
    }
    judge(report);
    Ok(())
}

/// A server and its endpoint, which wait in the same mode.
struct Side {
    /// One of [`KINDS`].
    kind: &'static str,
    column: String,
    server: AtSocket,
    endpoint: Endpoint,
}

fn span(plan: &Plan) -> Duration {
    if plan.quick { SPAN / 50 } else { SPAN }
}

fn column(mode: Mode, kind: &str) -> String {
    format!("{mode}, {kind}")
}

/// Measures processor shares without requests.
fn idle(report: &mut Report, servers: &[Side], plan: &Plan) -> Result<()> {
    for side in servers {
        go_on()?;
        if side.endpoint.mode == Mode::Event {
            let (server, _) = shares(side, None, plan);
            report.add(SERVER, "", &format!("{NO_LINK}, {}", side.kind), Unit::Percent, server);
        }
        let session = Session::begin(&side.endpoint, 0)?;
        session.ask(Operation::Null)?;
        let (server, caller) = shares(side, Some(&session), plan);
        report.add(SERVER, "", &side.column, Unit::Percent, server);
        report.add(CALLER, "", &side.column, Unit::Percent, caller);
    }
    Ok(())
}

/// Returns the processor shares of server and caller, in percent, while `_session`, if any, is idle.
fn shares(side: &Side, _session: Option<&Session>, plan: &Plan) -> (f64, f64) {
    let meter = CostMeter::new(&[side.server.server.id()], None).besides_initial_thread();
    thread::sleep(SETTLE);
    let before = meter.now();
    thread::sleep(span(plan));
    let cost = meter.now() - before;
    let percent = |ns: f64| ns / span(plan).as_nanos() as f64 * 100.0;
    (percent(cost.server_cpu_ns), percent(cost.caller_cpu_ns))
}

/// Reports the processor shares of server and caller together as met or missed targets.
fn judge(report: &mut Report) {
    for kind in KINDS {
        for mode in SLEEPERS {
            let column = column(mode, kind);
            let median = |row: &str, column: &str| Some(report.figure(row, column, "")?.spread.median);
            let none = median(SERVER, &format!("{NO_LINK}, {kind}"));
            let both = median(SERVER, &column).zip(median(CALLER, &column));
            let Some(((server, caller), none)) = both.zip(none) else { continue };
            let both = server + caller;
            let found = format!(
                "{both:.2} % (server {server:.2} %, {none:.2} % without a link; caller {caller:.2} %)"
            );
            let (target, met) = match kind {
                "doorbell" => (format!("0 % (met up to {NOTHING} %)"), both <= NOTHING),
                _ => (format!("≤ {SILENT_MAX} %"), both <= SILENT_MAX),
            };
            report.target(&format!("idle, {column}: share of a processor"), &target, found, Some(met));
        }
    }
}

const IN_PLACE: &str = "in place";
const COPIED: &str = "into or out of own memory";
const COPIES: &str = "copies of a byte";
const KERNEL: &str = "the server's kernel, between the file and the link's memory";
const ELSEWHERE: &str = "the server's kernel, between the file and other memory";
const TOUCHED: &str = "the link's memory that the caller touched";

/// Rows: the operation, and whether the data end in the program's own memory or stay in the link's.
const COPIED_ROWS: [(&str, &str, Operation); 4] = [
    ("read, 1 MiB", IN_PLACE, Operation::ReadInPlace(FILE_BYTES)),
    ("read, 1 MiB", COPIED, Operation::Read(FILE_BYTES)),
    ("write, 1 MiB", IN_PLACE, Operation::WriteInPlace(FILE_BYTES)),
    ("write, 1 MiB", COPIED, Operation::Write(FILE_BYTES)),
];
/// Memory files of links.
const LINK_FILES: [&str; 2] = ["/memfd:tombolo-client", "/memfd:tombolo-server"];
/// Limit for "one copy" of each byte; the excess allows for pages of the link that hold no data.
const ONE: f64 = 1.1;

/// Counts the copies of each byte between file and program, observed from outside: the arguments of the
/// server's system calls show which memory the kernel copied from or to, and the caller's page tables show
/// which pages of the link it has accessed.
fn copies(sheet: &mut Sheet<'_>, report: &mut Report) -> Result<()> {
    for (row, column, operation) in COPIED_ROWS {
        let (place, _) = served(&sheet.plan.within)?;
        let server = AtSocket::waiting(&place.shared(), &place.beside("socket"), Mode::Adaptive)?;
        let (moved, touched_bytes) = count(&server, operation)?;
        let share = |bytes: u64| bytes as f64 / FILE_BYTES as f64;
        let inside = share(moved.received_inside + moved.sent_inside);
        let outside = share(moved.received_outside + moved.sent_outside);
        let touched = share(touched_bytes);
        // Data that the kernel moved to or from other memory were copied once more, to or from the link.
        let copies = inside + 2.0 * outside + touched;
        for (part, value) in [(COPIES, copies), (KERNEL, inside), (ELSEWHERE, outside), (TOUCHED, touched)] {
            report.add(row, part, column, Unit::Times, value);
        }
        let (target, met) = match column {
            IN_PLACE => ("one copy", Some(copies <= ONE && inside + outside >= 1.0)),
            _ => ("printed", None),
        };
        report.target(&format!("{row}, {column}: {COPIES}"), target, format!("{copies:.2}"), met);
    }
    Ok(())
}

/// Returns the bytes that the server's system calls moved for one operation, and the number of bytes of the
/// link's memory that the caller accessed for it.
fn count(server: &AtSocket, operation: Operation) -> Result<(Moved, u64)> {
    let session = Session::begin(&Endpoint::of(server, Mode::Adaptive), FILE_BYTES)?;
    (0..10).try_for_each(|_| session.ask(Operation::Null))?;
    let meter = MovedMeter::follow(server.server.id())?;
    let of_link: Vec<_> =
        mappings(&server.server.id().to_string(), &LINK_FILES)?.into_iter().map(|part| part.range).collect();
    meter.look_at(&of_link);
    let before = touched_bytes()?;
    session.ask(operation)?;
    let touched_bytes = touched_bytes()?.saturating_sub(before);
    Ok((meter.moved(), touched_bytes))
}

/// Returns how many bytes of link memory this process has accessed.
fn touched_bytes() -> Result<u64> {
    Ok(mappings("self", &LINK_FILES)?.into_iter().map(|part| part.resident_bytes).sum())
}

const WRITE_ROW: &str = "write, 1 MiB, by reference, four outstanding";
const READ_ROW: &str = "read, 1 MiB, four outstanding";
const TWO: &str = "two domains";
const THREE: &str = "three domains";
const CPU: &str = "processor time of all";

/// Requests in flight of [`chain`].
const OUTSTANDING: usize = 4;
/// Requests of the warm-up, in which the program's memory is registered.
const WARM_REQUESTS: usize = 40;

/// Measures the cost of the intermediate domain in a chain of three: a client, a server that forwards, and a
/// file server.
fn chain(sheet: &mut Sheet<'_>, report: &mut Report) -> Result<()> {
    let (place, _) = served(&sheet.plan.within)?;
    let last = AtSocket::waiting(&place.shared(), &place.beside("last"), Mode::Event)?;
    let middle = AtSocket::waiting(Path::new(&last.url()), &place.beside("middle"), Mode::Event)?;
    let rows: [(&str, Begin); 2] = [(WRITE_ROW, write_by_reference), (READ_ROW, read_in_place_later)];
    for (row, operation) in rows {
        for _ in 0..sheet.rounds() {
            for (column, servers) in [(TWO, &[&last][..]), (THREE, &[&middle, &last])] {
                go_on()?;
                let cpu_ns = cpu_ns_per_megabyte(servers, operation, sheet.number("requests"))?;
                report.add(row, CPU, column, Unit::NanosecondsPerMegabyte, cpu_ns);
            }
        }
    }
    Ok(())
}

/// Function that starts a request, given its number; the answer is the number of bytes transferred.
type Begin = fn(&Session, usize) -> Answer<usize>;

/// Measures requests over a link to the first server: processor nanoseconds of all processes per megabyte.
fn cpu_ns_per_megabyte(servers: &[&AtSocket], begin: Begin, requests: usize) -> Result<f64> {
    let first = servers.first().ok_or_else(|| Error::Absent("a server".to_owned()))?;
    let session = Session::begin(&Endpoint::of(first, Mode::Event), 0)?;
    pipeline(&session, WARM_REQUESTS, begin)?;
    let ids: Vec<_> = servers.iter().map(|server| server.server.id()).collect();
    let meter = CostMeter::new(&ids, None);
    let before = meter.now();
    pipeline(&session, requests, begin)?;
    let cost = meter.now() - before;
    let megabytes = (requests * FILE_BYTES) as f64 / 1e6;
    Ok((cost.server_cpu_ns + cost.caller_cpu_ns) / megabytes)
}

fn write_by_reference(session: &Session, number: usize) -> Answer<usize> {
    let lent = match session.files.lend(FILE_BYTES) {
        Ok(lent) => lent,
        Err(error) => return Answer::err(error),
    };
    let offset = (number % OUTSTANDING * FILE_BYTES) as u64;
    let how = Write { offset, ..Write::default() };
    let answer = session.files.write_in_place(&session.cx, session.file, &how, lent, FILE_BYTES);
    Answer::later(async move { Ok(answer.resolve().await?.count) })
}

fn read_in_place_later(session: &Session, number: usize) -> Answer<usize> {
    let offset = (number % OUTSTANDING * FILE_BYTES) as u64;
    let answer = session.files.read_in_place(&session.cx, session.file, offset, FILE_BYTES);
    Answer::later(async move { Ok(answer.resolve().await?.data().len()) })
}

/// Makes `requests` requests, at most [`OUTSTANDING`] of them in flight.
fn pipeline(session: &Session, requests: usize, begin: Begin) -> Result<()> {
    let mut under_way = VecDeque::with_capacity(OUTSTANDING);
    for number in 0..requests + OUTSTANDING {
        if number >= OUTSTANDING {
            let answer: Option<Answer<usize>> = under_way.pop_front();
            let count = answer.map_or(Ok(0), Answer::wait).or_wrong("1 MiB")?;
            same("1 MiB", count, FILE_BYTES)?;
        }
        if number < requests {
            under_way.push_back(begin(session, number));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_works_in_every_wait_mode() {
        let (place, file) = served(&std::env::temp_dir()).unwrap();
        for mode in MODES {
            let (endpoint, _listener) =
                test_server::listen(&place.shared(), &place.beside(mode.name()), mode);
            let session = session::Session::begin(&endpoint, 1 << 20).unwrap();
            session.ask(Operation::Null).unwrap();
            session.ask(Operation::Getattr).unwrap();
            for bytes in [256, 512, 1024, 4096, 1 << 20] {
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
        let (place, file) = served(&std::env::temp_dir()).unwrap();
        let (endpoint, _listener) = test_server::listen(&place.shared(), &place.beside("event"), Mode::Event);
        fs::write(&file, [b'x'; 100]).unwrap();
        let session = session::Session::begin(&endpoint, 4096).unwrap();
        for operation in [Operation::Read(4096), Operation::ReadInPlace(4096)] {
            assert!(matches!(session.ask(operation), Err(Error::Wrong { .. })), "{operation:?}");
        }
        let mut native = native(&file, Operation::Read(4096)).unwrap();
        assert!(native.run(1, &mut Clock::new()).is_err());
    }

    #[test]
    fn idle_link_cost_sums_both_sides() {
        let mut report = Report::new("ring-rest", "x", false);
        for (row, column, percent) in [
            (SERVER, "no link, doorbell", 0.01),
            (SERVER, "event, doorbell", 0.02),
            (CALLER, "event, doorbell", 0.02),
            (SERVER, "no link, no doorbell", 0.2),
            (SERVER, "adaptive, no doorbell", 0.9),
            (CALLER, "adaptive, no doorbell", 0.5),
        ] {
            report.figures.push(Figure::single(row, "", column, Unit::Percent, percent));
        }
        judge(&mut report);
        let said: Vec<_> =
            report.targets.iter().map(|target| (target.found.as_str(), target.verdict())).collect();
        assert!(said[0].0.starts_with("0.04 %") && said[0].1 == "met", "{said:?}");
        assert!(said[1].0.starts_with("1.40 %") && said[1].1 == "missed", "{said:?}");
    }
}
