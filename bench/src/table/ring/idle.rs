//! What a link costs over which nothing is sent.

use std::thread;
use std::time::Duration;

use tombolo_shm::bell::Mode;

use super::Plan;
use super::server::Serving;
use super::session::{Deed, Door, Session};
use crate::error::Result;
use crate::measure::{CostMeter, Place, Spread, go_on};
use crate::report::{Figure, Report, Unit};

/// The row.
pub const ROW: &str = "idle for a second, processor time of both";
/// The column of what measuring itself costs.
pub const NO_LINK: &str = "no link";

const ROUNDS: usize = 5;
/// A processor's time that counts as none.
const LEAST_NS: f64 = 1e3;
/// Until a link is at rest that was used just now.
const REST: Duration = Duration::from_millis(20);

/// Measures both ways to wait that sleep, and no link at all, in turn.
pub fn measure(report: &mut Report, serving: &Serving, plan: &Plan) -> Result<()> {
    let columns = [None, Some(Mode::Event), Some(Mode::Adaptive)];
    let mut rounds = columns.map(|_| Vec::new());
    for _ in 0..plan.scaled(ROUNDS, 1) {
        for (column, rounds) in columns.into_iter().zip(&mut rounds) {
            go_on()?;
            rounds.push(idle_ns(serving, column, plan)?);
        }
    }
    for (column, rounds) in columns.into_iter().zip(rounds) {
        let column = column.map_or(NO_LINK, Mode::name);
        if let Some(spread) = Spread::of(&rounds) {
            let figure = Figure::single(ROW, "", column, Unit::Nanoseconds, 0.0);
            report.figures.push(Figure { spread, rounds, ..figure });
        }
    }
    Ok(())
}

/// Processor time of both sides in a second, after a request.
fn idle_ns(serving: &Serving, mode: Option<Mode>, plan: &Plan) -> Result<f64> {
    let servers = [serving.id()];
    Place::TwoCores.take(&servers)?;
    let session = match mode {
        Some(mode) => {
            let session = Session::begin(&Door { socket: serving.socket(mode), mode }, 0)?;
            session.ask(Deed::Null)?;
            Some(session)
        }
        None => None,
    };
    let meter = CostMeter::new(&servers, None);
    thread::sleep(REST);
    // Reading the counters costs the more the more threads there are, so it is measured and taken off.
    let first = meter.now();
    let before = meter.now();
    let reading = before - first;
    let second = Duration::from_secs(1);
    thread::sleep(if plan.quick { second / 10 } else { second });
    let cost = meter.now() - before - reading;
    drop(session);
    let scale = if plan.quick { 10.0 } else { 1.0 };
    // The chart's scale is logarithmic, and what is less cannot be told from nothing.
    Ok(((cost.server_cpu_ns + cost.caller_cpu_ns) * scale).max(LEAST_NS))
}
