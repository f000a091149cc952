//! Replacement of a disk in use: the present disk is frozen, and further writes go to a new one over it.
//!
//! A replacement takes several steps, so that no change waits while a disk of the host is flushed. A step is
//! refused while an earlier one is unfinished ([`Refusal`]). Without a replacement, `settle`, `go_on`,
//! `take_back` and `abandon` change nothing, except that the last three end the effect of `rest`.
//!
//! - [`rest`](Switch::rest), optional: flushes are acknowledged immediately. Until `go_on`, a power failure
//!   may lose writes that the guest has flushed; the caller decides that the guest may take that risk.
//! - [`replace`](Switch::replace): changes and flushes wait, so that [`take_back`](Switch::take_back) or
//!   [`abandon`](Switch::abandon) can undo the replacement at any time before `settle`.
//! - [`settle`](Switch::settle): changes go to the new disk, and the old one is made durable. Flushes wait.
//! - [`go_on`](Switch::go_on), once the old disk is durable: flushes go to the new disk.
//!
//! A stable write waits as a flush does. If the old disk cannot be made durable, all later flushes fail.

use std::future::poll_fn;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::task::{Poll, Waker};

use tombolo_core::block::{BlockDevice, Extents, Geometry, Profile, Range, Zeroing};
use tombolo_core::{Answer, Ctx, Error, Result, Stability, lock};
use tombolo_mem::{Sink, Source};

/// A disk that can be replaced, while in use, by another one of the same length.
#[derive(Clone)]
pub struct Switch(Arc<SwitchState>);

struct SwitchState {
    now: RwLock<Present>,
    /// Number of changes and flushes in progress. A request reads the phase and increments the number under
    /// the lock of `now`, so that no request begins under the rules of an earlier phase.
    under_way: AtomicUsize,
    /// Requests waiting for another phase.
    waiting: Mutex<Vec<Waker>>,
}

struct Present {
    disk: Arc<dyn BlockDevice>,
    phase: Phase,
    /// `true` once a replaced disk could not be made durable, or after [`Switch::give_up`]: flushes fail in
    /// every phase.
    is_lost: bool,
    /// Number of abandoned replacements, by which a waiting change detects that its own was abandoned.
    abandoned: u64,
}

enum Phase {
    /// No replacement is in progress: flushes are passed on.
    Usual,
    /// Flushes are acknowledged immediately.
    Resting,
    /// Changes and flushes wait for `settle` or an undo. The old disk, to be reinstated by an undo.
    Replaced(Arc<dyn BlockDevice>),
    /// Flushes wait. The old disk, which is being made durable.
    Settling(Arc<dyn BlockDevice>),
    /// The old disk is durable. Flushes wait for `go_on`, before which the caller may still rename files.
    Settled,
}

/// A request that is counted as in progress, on this disk. It must run to its end: a request whose answer is
/// dropped counts as in progress for ever.
struct Begun {
    disk: Arc<dyn BlockDevice>,
    state: Arc<SwitchState>,
}

/// Reason why a step of a replacement is refused. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A change or a flush is in progress.
    #[error("requests are outstanding")]
    Busy,
    /// An earlier replacement was neither undone nor completed by [`Switch::go_on`].
    #[error("the disk's last replacement is unfinished")]
    Unfinished,
}

impl Begun {
    fn ask<T: Send + 'static>(
        self,
        cx: &Ctx,
        ask: impl FnOnce(&dyn BlockDevice, &Ctx) -> Answer<T>,
    ) -> Answer<T> {
        match ask(&*self.disk, cx) {
            Answer::Done(result) => {
                self.end();
                Answer::Done(result)
            }
            Answer::Later(later) => Answer::later(async move {
                let result = later.await;
                self.end();
                result
            }),
        }
    }

    fn end(self) {
        self.state.under_way.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A flush that is begun on the present disk, or answered without one.
enum Flush {
    Begun(Begun),
    Answered(Result<()>),
}

impl Flush {
    fn ask(self, cx: &Ctx) -> Answer<()> {
        match self {
            Self::Begun(begun) => begun.ask(cx, |disk, cx| disk.flush(cx)),
            Self::Answered(result) => Answer::Done(result),
        }
    }
}

impl SwitchState {
    fn present(&self) -> RwLockReadGuard<'_, Present> {
        self.now.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Arc<dyn BlockDevice> {
        self.present().disk.clone()
    }

    /// Takes a step, and wakes all requests that wait.
    fn step<T>(&self, step: impl FnOnce(&mut Present) -> T) -> T {
        let mut now = self.now.write().unwrap_or_else(PoisonError::into_inner);
        let done = step(&mut now);
        // A task that is woken is polled on this thread, and needs the lock.
        drop(now);
        let waiting = mem::take(&mut *lock(&self.waiting));
        waiting.into_iter().for_each(Waker::wake);
        done
    }

    async fn wait_for<T>(&self, find: impl Fn(&Present) -> Option<T>) -> T {
        poll_fn(|context| {
            let now = self.present();
            if let Some(found) = find(&now) {
                return Poll::Ready(found);
            }
            // The next step needs the write lock of `now`, so it runs later and finds this waker.
            lock(&self.waiting).push(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    fn begin(self: &Arc<Self>, now: &Present) -> Begun {
        self.under_way.fetch_add(1, Ordering::AcqRel);
        Begun { disk: now.disk.clone(), state: self.clone() }
    }

    /// Begins a change, unless changes wait.
    fn begin_change(self: &Arc<Self>, now: &Present) -> Option<Begun> {
        (!matches!(now.phase, Phase::Replaced(_))).then(|| self.begin(now))
    }

    /// Begins a stable change in one step; `None` unless a flush of the present disk alone would suffice.
    fn begin_durable_change(self: &Arc<Self>) -> Option<Begun> {
        let now = self.present();
        (matches!(now.phase, Phase::Usual) && !now.is_lost).then(|| self.begin(&now))
    }

    /// Begins or answers a flush, unless flushes wait.
    fn begin_flush(self: &Arc<Self>, now: &Present) -> Option<Flush> {
        match now.phase {
            _ if now.is_lost => Some(Flush::Answered(Err(lost()))),
            Phase::Usual => Some(Flush::Begun(self.begin(now))),
            Phase::Resting => Some(Flush::Answered(Ok(()))),
            Phase::Replaced(_) | Phase::Settling(_) | Phase::Settled => None,
        }
    }

    fn change<T: Send + 'static>(
        self: &Arc<Self>,
        cx: &Ctx,
        ask: impl FnOnce(&dyn BlockDevice, &Ctx) -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        let now = self.present();
        let (begun, abandoned) = (self.begin_change(&now), now.abandoned);
        drop(now);
        if let Some(begun) = begun {
            return begun.ask(cx, ask);
        }
        let (inner, cx) = (self.clone(), cx.clone());
        Answer::later(async move {
            let begun = inner.wait_for(|now| {
                if now.abandoned != abandoned {
                    return Some(Err(Error::io("the change was abandoned")));
                }
                inner.begin_change(now).map(Ok)
            });
            let begun = begun.await?;
            let disk = begun.disk.clone();
            let asked = begun.ask(&cx, ask);
            disk.submit();
            asked.resolve().await
        })
    }

    /// Performs a change, and a stable one in two steps unless the present disk alone can make it durable: an
    /// unstable change, and then a flush.
    fn change_stably(
        self: &Arc<Self>,
        cx: &Ctx,
        stability: Stability,
        ask: impl FnOnce(&dyn BlockDevice, &Ctx, Stability) -> Answer<()> + Send + 'static,
    ) -> Answer<()> {
        if stability == Stability::Unstable {
            return self.change(cx, move |disk, cx| ask(disk, cx, stability));
        }
        if let Some(begun) = self.begin_durable_change() {
            return begun.ask(cx, move |disk, cx| ask(disk, cx, stability));
        }
        let (inner, flush_cx) = (self.clone(), cx.clone());
        let changed = self.change(cx, move |disk, cx| ask(disk, cx, Stability::Unstable));
        self.now().submit();
        changed.then(move |()| inner.flush(&flush_cx))
    }

    fn flush(self: &Arc<Self>, cx: &Ctx) -> Answer<()> {
        let begun = self.begin_flush(&self.present());
        if let Some(flush) = begun {
            return flush.ask(cx);
        }
        let (inner, cx) = (self.clone(), cx.clone());
        Answer::later(async move {
            let flushed = inner.wait_for(|now| inner.begin_flush(now)).await.ask(&cx);
            inner.now().submit();
            flushed.resolve().await
        })
    }

    /// Records the result of the flush of `old`, the replaced disk.
    fn settled(&self, old: &Arc<dyn BlockDevice>, flushed: Result<()>) -> Result<()> {
        self.step(|now| {
            now.is_lost |= flushed.is_err();
            if matches!(&now.phase, Phase::Settling(settling) if Arc::ptr_eq(settling, old)) {
                now.phase = Phase::Settled;
            }
            flushed.and(if now.is_lost { Err(lost()) } else { Ok(()) })
        })
    }
}

fn lost() -> Error {
    Error::io("earlier writes cannot be made durable")
}

impl Switch {
    /// Creates a switch, beginning with this disk.
    pub fn new(disk: Arc<dyn BlockDevice>) -> Self {
        let now = Present { disk, phase: Phase::Usual, is_lost: false, abandoned: 0 };
        Self(Arc::new(SwitchState {
            now: RwLock::new(now),
            under_way: AtomicUsize::new(0),
            waiting: Mutex::default(),
        }))
    }

    /// Returns the disk for front ends, which passes their requests to the present one or lets them wait.
    pub fn disk(&self) -> Arc<dyn BlockDevice> {
        Arc::new(self.clone())
    }

    /// Returns the present disk.
    pub fn now(&self) -> Arc<dyn BlockDevice> {
        self.0.now()
    }

    /// Returns `true` if a replaced disk could not be made durable, or was given up; all flushes fail then.
    pub fn is_lost(&self) -> bool {
        self.0.present().is_lost
    }

    /// Acknowledges flushes immediately from now on, unless data is lost.
    ///
    /// # Errors
    /// [`Refusal::Unfinished`] after [`replace`](Self::replace), until [`go_on`](Self::go_on) or an undo.
    pub fn rest(&self) -> std::result::Result<(), Refusal> {
        self.0.step(|now| match now.phase {
            Phase::Usual | Phase::Resting => {
                now.phase = Phase::Resting;
                Ok(())
            }
            Phase::Replaced(_) | Phase::Settling(_) | Phase::Settled => Err(Refusal::Unfinished),
        })
    }

    /// Directs all new requests to `disk`, which must read as the present one. Changes wait for
    /// [`settle`](Self::settle), [`take_back`](Self::take_back) or [`abandon`](Self::abandon). The caller
    /// must first stop the programs that make changes: under steady load there may always be one in progress.
    ///
    /// # Errors
    /// [`Refusal::Busy`] while a change or a flush is in progress, [`Refusal::Unfinished`] after another
    /// replacement, until [`go_on`](Self::go_on) or an undo: the disk is not replaced then.
    pub fn replace(&self, disk: Arc<dyn BlockDevice>) -> std::result::Result<(), Refusal> {
        self.0.step(|now| match now.phase {
            Phase::Replaced(_) | Phase::Settling(_) | Phase::Settled => Err(Refusal::Unfinished),
            _ if self.0.under_way.load(Ordering::Acquire) > 0 => Err(Refusal::Busy),
            Phase::Usual | Phase::Resting => {
                now.phase = Phase::Replaced(mem::replace(&mut now.disk, disk));
                Ok(())
            }
        })
    }

    /// Ends a rest, and reinstates the replaced disk, if any, unless [`settle`](Self::settle) was called.
    /// Waiting changes go to the reinstated disk.
    pub fn take_back(&self) {
        self.undo(0);
    }

    /// Does the same as [`take_back`](Self::take_back), but the waiting changes fail: they belong to a VMM
    /// that began with the new disk and has ended, not to the one that continues with the old disk.
    pub fn abandon(&self) {
        self.undo(1);
    }

    fn undo(&self, abandoned: u64) {
        self.0.step(|now| match &now.phase {
            Phase::Replaced(old) => {
                now.disk = old.clone();
                now.abandoned += abandoned;
                now.phase = Phase::Usual;
            }
            Phase::Resting => now.phase = Phase::Usual,
            Phase::Usual | Phase::Settling(_) | Phase::Settled => {}
        });
    }

    /// Fails the flushes that wait for [`go_on`](Self::go_on), which will not be called, and all later ones.
    /// Does nothing unless [`settle`](Self::settle) has been called, and `go_on` has not since.
    pub fn give_up(&self) {
        self.0.step(|now| now.is_lost |= matches!(now.phase, Phase::Settling(_) | Phase::Settled));
    }

    /// Lets changes proceed, and makes the replaced disk durable. If it cannot be made durable, all flushes
    /// fail from then on. Does nothing without a replaced disk.
    pub fn settle(&self, cx: &Ctx) -> Answer<()> {
        let old = self.0.step(|now| match &now.phase {
            Phase::Replaced(old) | Phase::Settling(old) => {
                let old = old.clone();
                now.phase = Phase::Settling(old.clone());
                Some(old)
            }
            Phase::Usual | Phase::Resting | Phase::Settled => None,
        });
        let Some(old) = old else {
            return if self.is_lost() { Answer::err(lost()) } else { Answer::ok(()) };
        };
        let flushed = old.flush(cx);
        old.submit();
        let inner = self.0.clone();
        flushed.map_result(move |flushed| inner.settled(&old, flushed))
    }

    /// Passes flushes on again, including those that wait, unless data is lost.
    ///
    /// # Errors
    /// [`Refusal::Unfinished`] after [`replace`](Self::replace), until [`settle`](Self::settle) has been
    /// answered or the replacement undone.
    pub fn go_on(&self) -> std::result::Result<(), Refusal> {
        self.0.step(|now| match now.phase {
            Phase::Replaced(_) | Phase::Settling(_) => Err(Refusal::Unfinished),
            Phase::Usual | Phase::Resting | Phase::Settled => {
                now.phase = Phase::Usual;
                Ok(())
            }
        })
    }

    /// Replaces the present disk by another one with the same contents. For a frozen disk: no change may be
    /// in progress, and none is waited for.
    pub fn renew(&self, disk: Arc<dyn BlockDevice>) {
        self.0.step(|now| now.disk = disk);
    }
}

impl BlockDevice for Switch {
    fn profile(&self) -> Profile {
        self.now().profile()
    }

    fn geometry(&self) -> Geometry {
        self.now().geometry()
    }

    fn read(&self, cx: &Ctx, offset: u64, into: Sink) -> Answer<()> {
        self.now().read(cx, offset, into)
    }

    fn write(&self, cx: &Ctx, offset: u64, stability: Stability, from: Source) -> Answer<()> {
        let write =
            move |disk: &dyn BlockDevice, cx: &Ctx, stability| disk.write(cx, offset, stability, from);
        self.0.change_stably(cx, stability, write)
    }

    fn flush(&self, cx: &Ctx) -> Answer<()> {
        self.0.flush(cx)
    }

    fn discard(&self, cx: &Ctx, range: Range) -> Answer<()> {
        self.0.change(cx, move |disk, cx| disk.discard(cx, range))
    }

    fn write_zeroes(&self, cx: &Ctx, range: Range, how: Zeroing) -> Answer<()> {
        self.0.change_stably(cx, how.stability, move |disk, cx, stability| {
            disk.write_zeroes(cx, range, Zeroing { stability, ..how })
        })
    }

    fn extents(&self, cx: &Ctx, range: Range, count_max: usize) -> Answer<Extents> {
        self.now().extents(cx, range, count_max)
    }

    fn submit(&self) {
        self.now().submit();
    }
}
