//! `waist`: cost of a layer. A null file system answers through zero to four layers, immediately and
//! asynchronously.

mod null;

use std::hint::black_box;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tombolo_core::fs::{Attr, Client, Export, FileSystem, NodeId, PermissionCheck};
use tombolo_core::{Answer, Ctx, Error as FsError, SessionId};
use tombolo_layer_basic::around::{Around, Call, Layered, Payload};
use tombolo_layer_basic::stats;

use self::null::{How, Null, NullExport};
use super::Plan;
use crate::error::{Error, Result};
use crate::measure::{Contest, Entrant, Placement, Work};
use crate::report::{Figure, Report};
use crate::sheet::{Sheet, sheet};

/// Number of layers in the deepest stack.
const LAYERS: usize = 4;
/// Operations per reading of the clock, which takes as long as several of them.
const AT_ONCE: u64 = 1000;
/// Maximum cost of four layers over a direct call, in nanoseconds.
const TARGET_NS: f64 = 30.0;

const ROW: &str = "getattr that does nothing";
const DIRECT: &str = "direct call";

pub fn run(plan: &Plan) -> Result<Report> {
    let sheet: Sheet<'_> = sheet!(plan, "waist")?;
    let mut report = sheet.report();
    // The compiler knows the callee, but not its result.
    let direct = Null(How::AtOnce);
    let mut entrants = vec![entrant(DIRECT, move |cx, node| black_box(&direct).getattr(cx, node, None))];
    for how in [How::AtOnce, How::Later] {
        for layers in 0..=LAYERS {
            entrants.push(entrant(&name(how, layers), stacked(how, layers)?));
        }
    }
    let null: Arc<dyn Export> = Arc::new(NullExport(How::AtOnce));
    let counted = attached(&stats::over(null, stats::Counters::new()))?;
    entrants.push(entrant("at once, 1 layer of stats", counted));
    let contest = Contest { count_max: 10_000_000, ..plan.timed() };
    report.contest_of_rows(&contest, entrants);
    Placement::leave()?;
    judge(&mut report);
    Ok(sheet.finish(report))
}

/// Reports the cost of four layers over a direct call.
fn judge(report: &mut Report) {
    let median = |row: &str| report.figure(row, ROW, "").map(|figure: &Figure| figure.spread.median);
    let deep = [How::AtOnce, How::Later].map(|how| median(&name(how, LAYERS)));
    let ([Some(at_once), Some(later)], Some(direct)) = (deep, median(DIRECT)) else { return };
    let verdict = if at_once - direct <= TARGET_NS { "met" } else { "missed" };
    report.condition(format!(
        "four layers cost {:.1} ns over a direct call at once (target: at most {TARGET_NS} ns, {verdict}), {:.1} ns later",
        at_once - direct,
        later - direct
    ));
}

fn name(how: How, layers: usize) -> String {
    let how = if how == How::AtOnce { "at once" } else { "later" };
    let plural = if layers == 1 { "" } else { "s" };
    format!("{how}, {layers} layer{plural}")
}

fn entrant(row: &str, getattr: impl Fn(&Ctx, NodeId) -> Answer<Attr> + 'static) -> Entrant<'static> {
    Entrant::new((row, ROW), repeat(getattr), &[], Placement::SameCore)
}

/// A layer that forwards everything.
struct Through;

impl Around for Through {
    #[inline]
    fn around<T: Payload>(&self, _call: Call, inner: impl FnOnce() -> Answer<T>) -> Answer<T> {
        // Like a layer that examines the result.
        inner().map_result(|result| result)
    }
}

/// Calls GETATTR through a stack of layers, as a front end does.
fn stacked(how: How, layers: usize) -> Result<impl Fn(&Ctx, NodeId) -> Answer<Attr>> {
    let mut export: Arc<dyn Export> = Arc::new(NullExport(how));
    for _ in 0..layers {
        export = Arc::new(Layered::new(export, Arc::new(Through)));
    }
    attached(&*export)
}

fn attached(export: &dyn Export) -> Result<impl Fn(&Ctx, NodeId) -> Answer<Attr> + use<>> {
    let client = Client { session: SessionId(1), label: "bench".to_owned(), checks: PermissionCheck::Caller };
    let files: Arc<dyn FileSystem> = export.attach(&client).map_err(|error| failed(&error))?;
    Ok(move |cx: &Ctx, node| black_box(&*files).getattr(cx, node, None))
}

fn repeat(getattr: impl Fn(&Ctx, NodeId) -> Answer<Attr> + 'static) -> Work<'static> {
    let cx = Ctx::root(SessionId(1));
    Work::repeat(AT_ONCE, move || {
        for _ in 0..AT_ONCE {
            let answer = getattr(black_box(&cx), black_box(NodeId::ROOT));
            black_box(finish(answer)).map_err(|error| failed(&error))?;
        }
        Ok(())
    })
}

#[inline]
fn finish(answer: Answer<Attr>) -> tombolo_core::Result<Attr> {
    match answer {
        Answer::Done(result) => result,
        Answer::Later(mut later) => match later.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => result,
            Poll::Pending => Err(FsError::Interrupted),
        },
    }
}

fn failed(error: &FsError) -> Error {
    Error::Wrong { what: "the null file system".to_owned(), answer: error.to_string() }
}
