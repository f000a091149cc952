//! Cost of an idle link, and of the first request after an idle time: with a doorbell that wakes a sleeper,
//! and without one, where a sleeper polls at doubling intervals.

use std::thread;
use std::time::Duration;

use tombolo_shm::doorbell::Mode;

use super::endpoint::Endpoint;
use super::idle_client::IdleClient;
use super::server::{EndpointKind, LinkServer, SLEEPERS};
use super::session::{Operation, Session};
use super::{Plan, speed};
use crate::error::{Doing, Result};
use crate::measure::{Contest, CostMeter, Entrant, Placement, Work, go_on};
use crate::report::{Figure, Report, Unit};

const SERVER: &str = "at rest: the server's share of a processor";
const CALLER: &str = "at rest: the caller's share of a processor";
const FIRST: &str = "null request after a rest of";
const BUSY: &str = "null request after another";
/// Column of a server without links.
const NO_LINK: &str = "no link";

/// Both kinds of endpoints, by column.
const KINDS: [(EndpointKind, &str); 2] =
    [(EndpointKind::Sockets, "doorbell"), (EndpointKind::Memory, "no doorbell")];

const ROUNDS: usize = 3;
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
    let title = "An idle link, and the first request after an idle time";
    let mut report = plan.report("ring-rest", title);
    let folder = plan.folder()?;
    let (shared, _) = speed::lay_out(folder.path())?;
    let mut servers = Vec::new();
    for (kind, name) in KINDS {
        let at = folder.path().join(name);
        std::fs::create_dir(&at).doing_to("make", &at)?;
        servers.push((name, LinkServer::start(&shared, &at, kind)?));
    }
    idle(&mut report, &servers, plan)?;
    let contest = first(&mut report, &servers, plan);
    Placement::leave()?;
    judge(&mut report);
    report.condition_of(&contest);
    report.condition(format!(
        "at rest: server and caller are processes of their own, looked at from a third one (/proc, schedstat) {} ms after one null \
         request, and again {} s later; {} rounds. `no link` is the server before the first client. A share is of one processor",
        SETTLE.as_millis(),
        span(plan).as_secs_f64(),
        plan.scaled(ROUNDS, 1),
    ));
    report.condition(
        "no doorbell: both sides sleep in memory that both can write, as between a guest and its host, and look at doubling intervals. \
         The first request after a rest waits for the server's next look, and its answer for the caller's",
    );
    Ok(report)
}

fn span(plan: &Plan) -> Duration {
    if plan.quick { SPAN / 50 } else { SPAN }
}

fn column(mode: Mode, kind: &str) -> String {
    format!("{mode}, {kind}")
}

/// Measures processor shares without requests.
fn idle(report: &mut Report, servers: &[(&str, LinkServer)], plan: &Plan) -> Result<()> {
    let mut columns: Vec<(String, &LinkServer, Option<Mode>)> = Vec::new();
    for (kind, serving) in servers {
        columns.push((format!("{NO_LINK}, {kind}"), serving, None));
        columns.extend(SLEEPERS.map(|mode| (column(mode, kind), serving, Some(mode))));
    }
    let mut rounds = vec![(Vec::new(), Vec::new()); columns.len()];
    for _ in 0..plan.scaled(ROUNDS, 1) {
        for ((_, serving, mode), (server, caller)) in columns.iter().zip(&mut rounds) {
            go_on()?;
            let (of_server, of_caller) = shares(serving, *mode, plan)?;
            server.push(of_server);
            caller.extend(of_caller);
        }
    }
    for ((column, _, _), (server, caller)) in columns.iter().zip(rounds) {
        for (row, rounds) in [(SERVER, server), (CALLER, caller)] {
            report.figures.extend(Figure::of_rounds(row, "", column, Unit::Percent, rounds));
        }
    }
    Ok(())
}

/// Returns the processor shares of server and caller, in percent.
fn shares(serving: &LinkServer, mode: Option<Mode>, plan: &Plan) -> Result<(f64, Option<f64>)> {
    let client = mode.map(|mode| IdleClient::start(&serving.endpoint(mode))).transpose()?;
    let meter = CostMeter::new(&[serving.id()], client.as_ref().map(IdleClient::id));
    thread::sleep(SETTLE);
    let before = meter.now();
    thread::sleep(span(plan));
    let cost = meter.now() - before;
    let percent = |ns: f64| ns / span(plan).as_nanos() as f64 * 100.0;
    Ok((percent(cost.server_cpu_ns), client.map(|_| percent(cost.caller_cpu_ns))))
}

fn first(report: &mut Report, servers: &[(&str, LinkServer)], plan: &Plan) -> Contest {
    let contest = Contest { count_max: plan.scaled(10, 3) as u64, ..plan.timed() };
    let rests = RESTS.into_iter().take(plan.scaled(RESTS.len(), 1));
    for rest in [Duration::ZERO].into_iter().chain(rests) {
        let mut entrants = Vec::new();
        for (kind, serving) in servers {
            for mode in SLEEPERS {
                let work = rested(serving.endpoint(mode), rest);
                let name = column(mode, kind);
                entrants.push(Entrant::new((&name, ""), work, &[serving.id()], Placement::TwoCores));
            }
        }
        let row = if rest.is_zero() { BUSY.to_owned() } else { format!("{FIRST} {} ms", rest.as_millis()) };
        let series = report.contest(&row, &contest, entrants);
        for one in &series {
            let quantiles = [0.01, 0.5, 0.99].map(|part| Unit::Nanoseconds.text(one.quantile_ns(part)));
            report.condition(format!("{row}, {}: p1, p50, p99 of all: {}", one.name.0, quantiles.join(", ")));
        }
    }
    contest
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
    for (_, kind) in KINDS {
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
        let mut report = Report::new("ring-rest", "x", String::new(), false);
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
