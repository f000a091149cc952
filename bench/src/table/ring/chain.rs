//! Chain of three domains: cost of the intermediate one.

use std::collections::VecDeque;
use std::fs;
use std::path::Path;

use tombolo_core::Answer;
use tombolo_core::fs::Write;
use tombolo_shm::doorbell::Mode;

use super::server::{EndpointKind, LinkServer};
use super::session::Session;
use super::{FILE_BYTES, Plan, speed, wrong};
use crate::error::{Doing, Error, Result};
use crate::measure::{CostMeter, go_on};
use crate::report::{Figure, Report, Unit};

const WRITE: &str = "write, 1 MiB, by reference, four outstanding";
const READ: &str = "read, 1 MiB, four outstanding";
const TWO: &str = "two domains";
const THREE: &str = "three domains";
const CPU: &str = "processor time of all";

/// Requests in flight.
const OUTSTANDING: usize = 4;
const ROUNDS: usize = 9;
/// Requests of a round, and of the warm-up, in which the program's memory is registered.
const REQUESTS: usize = 400;
const WARM: usize = 40;
/// Maximum cost of three domains relative to two.
const MORE: f64 = 1.1;

pub fn run(plan: &Plan) -> Result<Report> {
    let title = "A row of three domains: 1 MiB at a time, four outstanding";
    let mut report = plan.report("ring-chain", title);
    let folder = plan.folder()?;
    let at = |name: &str| {
        let at = folder.path().join(name);
        fs::create_dir(&at).doing_to("make", &at).map(|()| at)
    };
    let (shared, _) = speed::lay_out(folder.path())?;
    let (last_at, middle_at) = (at("last")?, at("middle")?);
    let last = LinkServer::start(&shared, &last_at, EndpointKind::Sockets)?;
    let middle = LinkServer::start(&last_at.join(Mode::Event.name()), &middle_at, EndpointKind::Sockets)?;
    let rows: [(&str, Operation); 2] = [(WRITE, write), (READ, read)];
    for (row, operation) in rows {
        let mut rounds = [Vec::new(), Vec::new()];
        for _ in 0..plan.scaled(ROUNDS, 2) {
            for (three, values) in rounds.iter_mut().enumerate() {
                go_on()?;
                let servers: &[&LinkServer] = if three == 1 { &[&middle, &last] } else { &[&last] };
                values.push(cpu_ns_per_megabyte(servers, operation, plan)?);
            }
        }
        for (column, rounds) in [TWO, THREE].into_iter().zip(rounds) {
            let unit = Unit::NanosecondsPerMegabyte;
            report.figures.extend(Figure::of_rounds(row, CPU, column, unit, rounds));
        }
    }
    for row in [WRITE, READ] {
        let of = |column| report.figure(row, column, CPU).map(|figure| figure.spread.median);
        if let (Some(two), Some(three)) = (of(TWO), of(THREE)) {
            let target = format!("processor time ≤ {MORE} × two domains");
            report.target(row, &target, format!("{:.2}", three / two), Some(three <= MORE * two));
        }
    }
    report.condition(
        "the program, the one in the middle and the last one, local-dir, are processes of their own; the two rows take turns. What is \
         written the program has put together in its link's memory; what is read it leaves where its server has put it. All wait with \
         doorbells and without looking before. Processor time is that of all threads of all of them (/proc, schedstat), the kernel's copy \
         between memory and file in it",
    );
    report.condition("reads are copied by the intermediate domain (docs/decisions/links-forwarding.md)");
    Ok(report)
}

/// Function that starts request number N and returns the bytes transferred.
type Operation = fn(&Session, usize) -> Answer<usize>;

/// Measures the processor time of requests over a link to the first server.
fn cpu_ns_per_megabyte(servers: &[&LinkServer], operation: Operation, plan: &Plan) -> Result<f64> {
    let first = servers.first().ok_or_else(|| Error::Absent("a server".to_owned()))?;
    let session = Session::begin(&first.endpoint(Mode::Event), 0)?;
    ask(&session, WARM, operation)?;
    let ids: Vec<_> = servers.iter().map(|server| server.id()).collect();
    let meter = CostMeter::new(&ids, None);
    let before = meter.now();
    let requests = plan.scaled(REQUESTS, 40);
    ask(&session, requests, operation)?;
    let cost = meter.now() - before;
    let megabytes = (requests * FILE_BYTES) as f64 / 1e6;
    Ok((cost.server_cpu_ns + cost.caller_cpu_ns) / megabytes)
}

fn write(session: &Session, number: usize) -> Answer<usize> {
    let lent = match session.files.lend(FILE_BYTES) {
        Ok(lent) => lent,
        Err(error) => return Answer::err(error),
    };
    let offset = (number % OUTSTANDING * FILE_BYTES) as u64;
    let how = Write { offset, ..Write::default() };
    let answer = session.files.write_in_place(&session.cx, session.file, &how, lent, FILE_BYTES);
    Answer::later(async move { Ok(answer.resolve().await?.count) })
}

fn read(session: &Session, number: usize) -> Answer<usize> {
    let offset = (number % OUTSTANDING * FILE_BYTES) as u64;
    let answer = session.files.read_in_place(&session.cx, session.file, offset, FILE_BYTES);
    Answer::later(async move { Ok(answer.resolve().await?.data().len()) })
}

fn ask(session: &Session, requests: usize, operation: Operation) -> Result<()> {
    let mut under_way = VecDeque::with_capacity(OUTSTANDING);
    for number in 0..requests + OUTSTANDING {
        if number >= OUTSTANDING {
            let answer: Option<Answer<usize>> = under_way.pop_front();
            let count = answer.map_or(Ok(0), Answer::wait).map_err(|error| wrong("1 MiB", &error))?;
            if count != FILE_BYTES {
                return Err(Error::Wrong { what: "1 MiB".to_owned(), answer: format!("{count} bytes") });
            }
        }
        if number < requests {
            under_way.push_back(operation(session, number));
        }
    }
    Ok(())
}

/// Returns `true` if the served item is another server's socket.
pub fn is_socket(shared: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    fs::metadata(shared).is_ok_and(|metadata| metadata.file_type().is_socket())
}
