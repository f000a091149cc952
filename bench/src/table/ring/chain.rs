//! Chain of three domains: cost of the intermediate one.

use std::collections::VecDeque;
use std::path::Path;

use tombolo_core::Answer;
use tombolo_core::fs::Write;
use tombolo_shm::doorbell::Mode;

use super::endpoint::Endpoint;
use super::session::Session;
use super::{FILE_BYTES, Plan, speed};
use crate::error::{Error, OrWrong, Result, same};
use crate::measure::{CostMeter, go_on};
use crate::peer::Shm;
use crate::report::{Report, Unit};
use crate::sheet::{Sheet, sheet};

const WRITE: &str = "write, 1 MiB, by reference, four outstanding";
const READ: &str = "read, 1 MiB, four outstanding";
const TWO: &str = "two domains";
const THREE: &str = "three domains";
const CPU: &str = "processor time of all";

/// Requests in flight.
const OUTSTANDING: usize = 4;
/// Requests of the warm-up, in which the program's memory is registered.
const WARM: usize = 40;

pub fn run(plan: &Plan) -> Result<Report> {
    let sheet: Sheet<'_> = sheet!(plan, "ring-chain")?;
    let mut report = sheet.report();
    let folder = plan.folder()?;
    let (shared, _) = speed::lay_out(folder.path())?;
    let last = Shm::waiting(&shared, &folder.path().join("last"), Mode::Event)?;
    let middle = Shm::waiting(Path::new(&last.url()), &folder.path().join("middle"), Mode::Event)?;
    let rows: [(&str, Operation); 2] = [(WRITE, write), (READ, read)];
    for (row, operation) in rows {
        for _ in 0..sheet.rounds() {
            for (column, servers) in [(TWO, &[&last][..]), (THREE, &[&middle, &last])] {
                go_on()?;
                let cpu_ns = cpu_ns_per_megabyte(servers, operation, sheet.number("requests"))?;
                report.add(row, CPU, column, Unit::NanosecondsPerMegabyte, cpu_ns);
            }
        }
    }
    Ok(sheet.finish(report))
}

/// Function that starts request number N and returns the bytes transferred.
type Operation = fn(&Session, usize) -> Answer<usize>;

/// Measures the processor time of requests over a link to the first server.
fn cpu_ns_per_megabyte(servers: &[&Shm], operation: Operation, requests: usize) -> Result<f64> {
    let first = servers.first().ok_or_else(|| Error::Absent("a server".to_owned()))?;
    let session = Session::begin(&Endpoint::of(first, Mode::Event), 0)?;
    ask(&session, WARM, operation)?;
    let ids: Vec<_> = servers.iter().map(|server| server.server()).collect();
    let meter = CostMeter::new(&ids, None);
    let before = meter.now();
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
            let count = answer.map_or(Ok(0), Answer::wait).or_wrong("1 MiB")?;
            same("1 MiB", count, FILE_BYTES)?;
        }
        if number < requests {
            under_way.push_back(operation(session, number));
        }
    }
    Ok(())
}
