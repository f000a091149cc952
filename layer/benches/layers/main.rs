//! What a layer costs: `cargo bench -p tombolo-layer`.
//!
//! Time per operation, directly and through four layers, where the back end answers `Done` and where it answers `Later`;
//! beside them the same four layers over an interface whose every answer is a boxed future, which is what the waist
//! would be without `Done`. Medians and tenth percentiles of many short rounds, taken in turn.
#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]

mod null;

use std::future::{Future, ready};
use std::hint::black_box;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use tombolo_back_memory::Memory;
use tombolo_core::fs::{
    Answer, Attr, Client, Ctx, Export, FileSystem, Name, NodeId, PermissionCheck, Result, SessionId,
};
use tombolo_layer::around::{Around, Call, Payload};
use tombolo_layer::stats::{Counters, Stats};
use tombolo_layer::{Layered, fault, readonly, stats};

/// Rounds are short and many, so that most are not interrupted.
const ROUNDS: usize = 1000;
const CALLS: u32 = 1000;

/// A layer that does nothing: what remains is the waist itself.
struct Through;

impl Around for Through {
    #[inline]
    fn around<T: Payload>(&self, _call: Call, inner: impl FnOnce() -> Answer<T>) -> Answer<T> {
        inner()
    }
}

/// A layer that looks at every result, as most do.
#[derive(Default)]
struct Looking(Arc<AtomicU64>);

impl Around for Looking {
    #[inline]
    fn around<T: Payload>(&self, _call: Call, inner: impl FnOnce() -> Answer<T>) -> Answer<T> {
        match inner() {
            Answer::Done(result) => {
                self.0.fetch_add(u64::from(result.is_err()), Ordering::Relaxed);
                Answer::Done(result)
            }
            Answer::Later(later) => {
                let errors = self.0.clone();
                Answer::later(async move {
                    let result = later.await;
                    errors.fetch_add(u64::from(result.is_err()), Ordering::Relaxed);
                    result
                })
            }
        }
    }
}

/// A back end that answers every `getattr` later, ready at the first look; all else is the inner one's.
struct Pending;

impl Around for Pending {
    fn around<T: Payload>(&self, _call: Call, inner: impl FnOnce() -> Answer<T>) -> Answer<T> {
        match inner() {
            Answer::Done(result) => Answer::later(ready(result)),
            later => later,
        }
    }
}

/// The waist with boxed futures for all.
trait Boxed: Send + Sync {
    fn getattr<'a>(
        &'a self,
        cx: &'a Ctx,
        node: NodeId,
    ) -> Pin<Box<dyn Future<Output = Result<Attr>> + Send + 'a>>;
}

struct BoxedBottom(Arc<dyn FileSystem>);

impl Boxed for BoxedBottom {
    fn getattr<'a>(
        &'a self,
        cx: &'a Ctx,
        node: NodeId,
    ) -> Pin<Box<dyn Future<Output = Result<Attr>> + Send + 'a>> {
        Box::pin(async move { self.0.getattr(cx, node, None).resolve().await })
    }
}

struct BoxedLayer(Arc<dyn Boxed>, AtomicU64);

impl Boxed for BoxedLayer {
    fn getattr<'a>(
        &'a self,
        cx: &'a Ctx,
        node: NodeId,
    ) -> Pin<Box<dyn Future<Output = Result<Attr>> + Send + 'a>> {
        Box::pin(async move {
            let result = self.0.getattr(cx, node).await;
            self.1.fetch_add(u64::from(result.is_err()), Ordering::Relaxed);
            result
        })
    }
}

use null::NullFs;

type Work<'a> = (&'static str, Box<dyn Fn() + 'a>);

fn main() {
    let memory: Arc<dyn Export> = Arc::new(Memory::default());
    let null = attach(&*memory);
    let cx = Ctx::root(SessionId(1));
    let done: Arc<dyn FileSystem> = Arc::new(NullFs(attr(&*null, &cx)));
    let four = |fs: &Arc<dyn FileSystem>| stack(fs, Looking::default);
    let through = stack::<Through>(&done, || Through);
    let looking = four(&done);
    let counted: Arc<dyn FileSystem> =
        Arc::new(Layered::over_session(done.clone(), Arc::new(Stats::new(Counters::new()))));
    let pending: Arc<dyn FileSystem> = Arc::new(Layered::over_session(done.clone(), Arc::new(Pending)));
    let pending_through = stack::<Through>(&pending, || Through);
    let pending_looking = four(&pending);
    let boxed = (0..4).fold(Arc::new(BoxedBottom(done.clone())) as Arc<dyn Boxed>, |inner, _| {
        Arc::new(BoxedLayer(inner, AtomicU64::new(0)))
    });
    let product = attach(&stats::over(
        Arc::new(readonly::over(Arc::new(fault::over(
            Arc::new(stats::over(memory.clone(), Counters::new())),
            fault::Plan::default(),
        )))),
        Counters::new(),
    ));

    let getattr = |fs: Arc<dyn FileSystem>| -> Box<dyn Fn() + '_> {
        let cx = &cx;
        Box::new(move || drop(black_box(finished(fs.getattr(cx, black_box(NodeId::ROOT), None)))))
    };
    let lookup = |fs: Arc<dyn FileSystem>| -> Box<dyn Fn() + '_> {
        let cx = &cx;
        Box::new(move || {
            let name = Name::new(b"missing");
            drop(black_box(name.map(|name| finished(fs.lookup(cx, NodeId::ROOT, name)))));
        })
    };
    let works: Vec<Work<'_>> = vec![
        ("Done, direct", getattr(done.clone())),
        ("Done, four layers that do nothing", getattr(through)),
        ("Done, four layers that look at the result", getattr(looking)),
        ("Done, one stats layer", getattr(counted)),
        ("Later, direct", getattr(pending)),
        ("Later, four layers that do nothing", getattr(pending_through)),
        ("Later, four layers that look at the result", getattr(pending_looking)),
        ("boxed futures for all, four layers", {
            let cx = &cx;
            Box::new(move || drop(black_box(poll_once(boxed.getattr(cx, black_box(NodeId::ROOT))))))
        }),
        ("memory getattr, direct", getattr(null.clone())),
        ("memory getattr, stats over readonly over fault over stats", getattr(product.clone())),
        ("memory lookup, direct", lookup(null)),
        ("memory lookup, stats over readonly over fault over stats", lookup(product)),
    ];
    print(&works);
}

fn print(works: &[Work<'_>]) {
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); works.len()];
    for _ in 0..ROUNDS {
        for ((_, work), times) in works.iter().zip(&mut times) {
            let began = Instant::now();
            (0..CALLS).for_each(|_| work());
            times.push(began.elapsed().as_nanos() as f64 / f64::from(CALLS));
        }
    }
    println!("{:<60} {:>8} {:>8}", "", "median", "p10");
    for ((name, _), times) in works.iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        println!("{name:<60} {:>5.1} ns {:>5.1} ns", times[ROUNDS / 2], times[ROUNDS / 10]);
    }
}

fn attach(export: &dyn Export) -> Arc<dyn FileSystem> {
    let client = Client { session: SessionId(1), label: "bench".into(), checks: PermissionCheck::Caller };
    export.attach(&client).expect("a session")
}

fn attr(fs: &dyn FileSystem, cx: &Ctx) -> Attr {
    fs.getattr(cx, NodeId::ROOT, None).wait().expect("attributes")
}

fn stack<A: Around>(fs: &Arc<dyn FileSystem>, layer: impl Fn() -> A) -> Arc<dyn FileSystem> {
    (0..4).fold(fs.clone(), |inner, _| Arc::new(Layered::over_session(inner, Arc::new(layer()))))
}

/// The result of an answer that is ready, now or at the first look.
fn finished<T>(answer: Answer<T>) -> Result<T> {
    match answer {
        Answer::Done(result) => result,
        Answer::Later(later) => poll_once(later),
    }
}

fn poll_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("the bottom is ready at once"),
    }
}
