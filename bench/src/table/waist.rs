//! `waist`: cost of a layer over a file system. GETATTR is called through zero to four layers that only
//! forward, over [`Null`], which answers at once or by a future that is ready when first polled.

use std::hint::black_box;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tombolo_core::fs::{
    Attr, Client, Device, Export, File, FileSystem, FileType, Mode, NodeId, Op, PermissionCheck, Profile,
    Timestamp,
};
use tombolo_core::{Answer, Ctx, Error as FsError, SessionId};
use tombolo_layer_basic::around::{Around, Call, Layered, Payload};
use tombolo_layer_basic::stats;

use crate::error::{Error, Result};
use crate::measure::{Contest, Entrant, Placement, Work};
use crate::report::{Figure, Report};
use crate::session::Session;
use crate::sheet::Sheet;

/// Number of layers in the deepest stack.
const LAYERS: usize = 4;
/// Number of operations per reading of the clock, since one reading takes as long as several operations.
const AT_ONCE: u64 = 1000;
/// Maximum cost of four layers over a direct call, in nanoseconds.
const TARGET_NS: f64 = 30.0;

const ROW: &str = "getattr that does nothing";
const DIRECT: &str = "direct call";

pub fn run(sheet: &mut Sheet<'_>, report: &mut Report) -> Result<()> {
    // `direct` is of a known type, so that the call can be inlined; `black_box` hides its result.
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
    let contest = Contest { count_max: 10_000_000, ..sheet.plan.timed() };
    report.contest_of_rows(&contest, entrants);
    judge(report);
    Ok(())
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
    let files = Session::attached(export)?.fs;
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

/// Kind of answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    AtOnce,
    /// A future, which is ready when first polled.
    Later,
}

/// Export of [`Null`].
#[derive(Clone, Copy, Debug)]
pub struct NullExport(pub How);

impl Export for NullExport {
    fn attach(&self, _client: &Client) -> tombolo_core::Result<Arc<dyn FileSystem>> {
        Ok(Arc::new(Null(self.0)))
    }
}

/// A file system with one node. It answers GETATTR with constants, ignores FORGET and RELEASE, and refuses
/// all other calls.
#[derive(Clone, Copy, Debug)]
pub struct Null(pub How);

const ATTR: Attr = Attr {
    file_type: FileType::Regular,
    mode: Mode::new(0o644),
    nlink: 1,
    uid: 0,
    gid: 0,
    size: 0,
    blocks: 0,
    block_size: 4096,
    rdev: Device { major: 0, minor: 0 },
    fsid: 1,
    fileid: 1,
    generation: 0,
    atime: Timestamp { secs: 0, nanos: 0 },
    mtime: Timestamp { secs: 0, nanos: 0 },
    ctime: Timestamp { secs: 0, nanos: 0 },
    btime: None,
    volatile: false,
};

impl FileSystem for Null {
    fn profile(&self) -> Profile {
        Profile {
            permission_check: PermissionCheck::Caller,
            read_only: true,
            name_max: 255,
            file_size_max: 0,
            time_granularity_ns: 1,
            writes_by_owner: false,
        }
    }

    fn getattr(&self, _cx: &Ctx, _node: NodeId, _file: Option<File>) -> Answer<Attr> {
        match self.0 {
            How::AtOnce => Answer::ok(ATTR),
            How::Later => Answer::later(async { Ok(ATTR) }),
        }
    }

    tombolo_core::forward!(through self.refuse;
        lookup setattr access readlink create create_unnamed mkdir symlink mknod link unlink rmdir rename open flush fsync read write readdir
        statfs syncfs);

    fn forget(&self, _cx: &Ctx, _look_ups: &[(NodeId, u64)]) {}

    fn release(&self, _cx: &Ctx, _file: File) {}
}

impl Null {
    /// Refuses the call.
    fn refuse<T>(&self, _op: Op, _call: impl FnOnce(&dyn FileSystem) -> Answer<T>) -> Answer<T> {
        Answer::err(FsError::NotSupported)
    }
}
