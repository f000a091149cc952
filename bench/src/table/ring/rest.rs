//! Cost of an idle link, and of the first request after an idle time: with a doorbell that wakes a sleeper,
//! and without one, where a sleeper polls at doubling intervals.

use std::thread;
use std::time::Duration;

use tombolo_host_links::shared_memory::MemoryLocation;
use tombolo_shm::doorbell::Mode;

use super::endpoint::{At, Endpoint};
use super::session::{Operation, Session};
use super::{Plan, SLEEPERS, speed};
use crate::error::Result;
use crate::measure::{Contest, CostMeter, Entrant, Placement, Work, go_on};
use crate::peer::Shm;
use crate::report::{Figure, Report, Unit};
use crate::sheet::{Sheet, sheet};

const SERVER: &str = "at rest: the server's share of a processor";
const CALLER: &str = "at rest: the caller's share of a processor";
const FIRST: &str = "null request after a rest of";
const BUSY: &str = "null request after another";
/// Column of a server without links.
const NO_LINK: &str = "no link";

/// Both kinds of endpoints: a socket, and memory of this size.
const KINDS: [&str; 2] = ["doorbell", "no doorbell"];
const MEMORY_BYTES: u64 = 16 << 20;

/// Duration of the idle measurement; and time until a recently used link is idle.
const SPAN: Duration = Duration::from_secs(5);
const SETTLE: Duration = Duration::from_millis(200);
/// Idle times before one request: shorter and much longer than the maximum interval.
const RESTS: [Duration; 3] =
    [Duration::from_millis(1), Duration::from_millis(10), Duration::from_millis(100)];
/// Step between idle times, so that they never match a sleeper's interval.
const STEP: Duration = Duration::from_micros(137);

/// Processor shares in percent of both sides together: the limit that counts as nothing, and the maximum of a
/// sleeper without a doorbell.
const NOTHING: f64 = 0.05;
const SILENT_MAX: f64 = 1.0;

pub fn run(plan: &Plan) -> Result<Report> {
    let mut sheet: Sheet<'_> = sheet!(plan, "ring-rest")?;
    sheet.set("span_s", &span(plan).as_secs_f64());
    let mut report = sheet.report();
    let folder = plan.folder()?;
    let (shared, _) = speed::lay_out(folder.path())?;
    let mut servers = Vec::new();
    for (kind, mode) in KINDS.into_iter().flat_map(|kind| SLEEPERS.map(|mode| (kind, mode))) {
        let column = column(mode, kind);
        let place = folder.path().join(column.replace([' ', ','], "-"));
        let server = match kind {
            "doorbell" => Shm::waiting(&shared, &place, mode)?,
            _ => Shm::over_memory(&shared, (&place, MEMORY_BYTES), mode, None)?,
        };
        let at = match kind {
            "doorbell" => At::Socket(place),
            _ => At::Memory(MemoryLocation::File(place)),
        };
        servers.push(Side { kind, column, server, endpoint: Endpoint { at, mode, bell: None } });
    }
    for _ in 0..plan.scaled(sheet.number("idle_rounds"), 1) {
        idle(&mut report, &servers, plan)?;
    }
    first(&mut report, &servers, plan);
    Placement::leave()?;
    judge(&mut report);
    Ok(sheet.finish(report))
}

/// A server, which waits like its client.
struct Side {
    kind: &'static str,
    column: String,
    server: Shm,
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

/// Returns the processor shares of server and caller, in percent, while a session is idle.
fn shares(side: &Side, _session: Option<&Session>, plan: &Plan) -> (f64, f64) {
    let meter = CostMeter::new(&[side.server.server()], None).besides_initial_thread();
    thread::sleep(SETTLE);
    let before = meter.now();
    thread::sleep(span(plan));
    let cost = meter.now() - before;
    let percent = |ns: f64| ns / span(plan).as_nanos() as f64 * 100.0;
    (percent(cost.server_cpu_ns), percent(cost.caller_cpu_ns))
}

fn first(report: &mut Report, servers: &[Side], plan: &Plan) {
    let contest = Contest { count_max: plan.scaled(10, 3) as u64, ..plan.timed() };
    let rests = RESTS.into_iter().take(plan.scaled(RESTS.len(), 1));
    for rest in [Duration::ZERO].into_iter().chain(rests) {
        let entrants = servers.iter().map(|side| {
            let (work, servers) = (rested(side.endpoint.clone(), rest), [side.server.server()]);
            Entrant::new((&side.column, ""), work, &servers, Placement::TwoCores)
        });
        let row = if rest.is_zero() { BUSY.to_owned() } else { format!("{FIRST} {} ms", rest.as_millis()) };
        let series = report.contest(&row, &contest, entrants.collect());
        for one in &series {
            let quantiles = speed::quantiles(one);
            report.condition(format!("{row}, {}: p1, p50, p99 of all: {quantiles}", one.name.0));
        }
    }
}

/// Sends null requests after idle times, over a permanent link, which costs the other contestants almost
/// nothing.
fn rested(endpoint: Endpoint, rest: Duration) -> Work<'static> {
    let (mut kept, mut rests) = (None, 0);
    Work::new(move |count, clock| {
        let session = match kept.take() {
            Some(session) => session,
            None => Session::begin(&endpoint, 0)?,
        };
        let session = kept.insert(session);
        for _ in 0..count {
            if !rest.is_zero() {
                rests = (rests + 1) % 32;
                thread::sleep(rest + STEP * rests);
            }
            clock.time(|| session.ask(Operation::Null))?;
        }
        Ok(())
    })
}

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
    let longest = RESTS.last().map(Duration::as_millis).unwrap_or_default();
    let row = format!("{FIRST} {longest} ms");
    let rested = report.figure(&row, &column(Mode::Adaptive, "no doorbell"), "").cloned();
    let rung = report.figure(&row, &column(Mode::Adaptive, "doorbell"), "").cloned();
    if let Some((rested, rung)) = rested.zip(rung) {
        let text = |figure: &Figure| Unit::Nanoseconds.text(figure.spread.median);
        let found = format!("{} (with a doorbell: {})", text(&rested), text(&rung));
        report.target(
            "what a sleeper without a doorbell costs the first request, adaptive",
            "printed",
            found,
            None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
