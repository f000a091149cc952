//! Replacement of a disk in use: the present disk is frozen, and further writes go to a new one.
//!
//! This takes several steps, so that no request waits while a disk of the host is flushed. At *rest*, flushes
//! are acknowledged immediately; the caller must be prepared for that. After [`replace`](Switch::replace)
//! changes wait, so that [`take_back`](Switch::take_back) or [`abandon`](Switch::abandon) can undo it at any
//! time. With [`settle`](Switch::settle) they go to the new disk, and requests for durability wait until the
//! old one is durable.

use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::task::{Poll, Waker};

use tombolo_core::block::{BlockDevice, Extents, Geometry, Profile, Range, Zeroing};
use tombolo_core::{Answer, Ctx, Error, Stability};
use tombolo_mem::{Sink, Source};

/// A disk that can be replaced by others of its length.
#[derive(Clone)]
pub struct Switch(Arc<SwitchState>);

struct SwitchState {
    now: RwLock<Present>,
    /// Changes and flushes in progress.
    under_way: AtomicUsize,
    durability: Mutex<Durability>,
}

struct Present {
    disk: Arc<dyn BlockDevice>,
    /// `true` in [`Phase::Replaced`].
    is_held: bool,
    /// Number of abandoned replacements.
    abandoned: u64,
}

#[derive(Default)]
struct Durability {
    phase: Phase,
    /// Requests waiting for the next phase.
    waiting: Vec<Waker>,
}

#[derive(Clone, Default)]
enum Phase {
    /// Flushes are passed on.
    #[default]
    Usual,
    /// Flushes are acknowledged immediately.
    Resting,
    /// Changes and flushes wait until it is decided which of the two disks is the present one.
    Replaced(Arc<dyn BlockDevice>),
    /// Flushes wait until the replaced disk is durable.
    Unsettled(Arc<dyn BlockDevice>),
    /// The replaced disk could not be made durable: all flushes fail.
    Lost,
}

/// A request in progress, which ends on drop, even unanswered.
struct InProgress(Arc<SwitchState>);

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Error of a replacement while a change or a flush is in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

impl SwitchState {
    fn durability(&self) -> MutexGuard<'_, Durability> {
        self.durability.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn present(&self) -> RwLockReadGuard<'_, Present> {
        self.now.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn present_mut(&self) -> RwLockWriteGuard<'_, Present> {
        self.now.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Arc<dyn BlockDevice> {
        self.present().disk.clone()
    }

    fn enter(&self, phase: Phase) {
        let mut durability = self.durability();
        durability.phase = phase;
        durability.waiting.drain(..).for_each(Waker::wake);
    }

    /// Enters a phase, unless data is lost.
    fn enter_unless_lost(&self, phase: Phase) {
        let mut durability = self.durability();
        if !matches!(durability.phase, Phase::Lost) {
            durability.phase = phase;
            durability.waiting.drain(..).for_each(Waker::wake);
        }
    }

    /// Begins a change. While changes wait, returns the number of replacements abandoned before.
    fn begin(self: &Arc<Self>) -> std::result::Result<(Arc<dyn BlockDevice>, InProgress), u64> {
        let now = self.present();
        if now.is_held {
            return Err(now.abandoned);
        }
        self.under_way.fetch_add(1, Ordering::AcqRel);
        Ok((now.disk.clone(), InProgress(self.clone())))
    }

    fn change<T: Send + 'static>(
        self: &Arc<Self>,
        cx: &Ctx,
        ask: impl FnOnce(&dyn BlockDevice, &Ctx) -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        let (disk, under_way) = match self.begin() {
            Ok(begun) => begun,
            Err(abandoned) => {
                let (inner, cx) = (self.clone(), cx.clone());
                return Answer::later(async move {
                    let (disk, _under_way) = loop {
                        inner.leaves(|phase| matches!(phase, Phase::Replaced(_))).await;
                        if inner.present().abandoned != abandoned {
                            return Err(Error::io("the change was abandoned"));
                        }
                        if let Ok(begun) = inner.begin() {
                            break begun;
                        }
                    };
                    let asked = ask(&*disk, &cx);
                    disk.submit();
                    asked.resolve().await
                });
            }
        };
        match ask(&*disk, cx) {
            Answer::Done(result) => Answer::Done(result),
            Answer::Later(later) => Answer::later(async move {
                let result = later.await;
                drop(under_way);
                result
            }),
        }
    }

    fn flush(self: &Arc<Self>, cx: &Ctx) -> Answer<()> {
        let phase = self.durability().phase.clone();
        match phase {
            Phase::Usual => self.change(cx, |disk, cx| disk.flush(cx)),
            Phase::Resting => Answer::ok(()),
            Phase::Lost => Answer::err(lost()),
            Phase::Replaced(_) | Phase::Unsettled(_) => {
                let (inner, cx) = (self.clone(), cx.clone());
                Answer::later(async move {
                    inner.leaves(|phase| matches!(phase, Phase::Replaced(_) | Phase::Unsettled(_))).await;
                    if matches!(inner.durability().phase, Phase::Lost) {
                        return Err(lost());
                    }
                    let flushed = inner.change(&cx, |disk, cx| {
                        let flushed = disk.flush(cx);
                        disk.submit();
                        flushed
                    });
                    flushed.resolve().await
                })
            }
        }
    }

    /// Waits until the phase is none of these.
    async fn leaves(&self, is_one: impl Fn(&Phase) -> bool) {
        poll_fn(|context| {
            let mut durability = self.durability();
            if !is_one(&durability.phase) {
                return Poll::Ready(());
            }
            durability.waiting.push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Performs a change and flushes it, because in this phase the disk alone cannot make the change durable.
    fn in_two_steps(
        self: &Arc<Self>,
        cx: &Ctx,
        change: impl FnOnce(&dyn BlockDevice, &Ctx) -> Answer<()> + Send + 'static,
    ) -> Answer<()> {
        let (inner, flush_cx) = (self.clone(), cx.clone());
        let changed = self.change(cx, change);
        self.now().submit();
        changed.then(move |()| inner.flush(&flush_cx))
    }

    fn is_usual(&self) -> bool {
        matches!(self.durability().phase, Phase::Usual)
    }
}

fn lost() -> Error {
    Error::io("earlier writes cannot be made durable")
}

impl Switch {
    /// Creates a switch, beginning with this disk.
    pub fn new(disk: Arc<dyn BlockDevice>) -> Self {
        Self(Arc::new(SwitchState {
            now: RwLock::new(Present { disk, is_held: false, abandoned: 0 }),
            under_way: AtomicUsize::new(0),
            durability: Mutex::default(),
        }))
    }

    /// Returns the switchable disk.
    pub fn disk(&self) -> Arc<dyn BlockDevice> {
        Arc::new(self.clone())
    }

    /// Returns the present disk.
    pub fn now(&self) -> Arc<dyn BlockDevice> {
        self.0.now()
    }

    /// Returns `true` if a replaced disk could not be made durable; all flushes fail then.
    pub fn is_lost(&self) -> bool {
        matches!(self.0.durability().phase, Phase::Lost)
    }

    /// Acknowledges flushes immediately from now on, unless data is lost.
    pub fn rest(&self) {
        self.0.enter_unless_lost(Phase::Resting);
    }

    /// Directs all new requests to `disk`, which must read as the present one. Changes wait for
    /// [`settle`](Self::settle), [`take_back`](Self::take_back) or [`abandon`](Self::abandon).
    ///
    /// # Errors
    /// [`Busy`] while a change or a flush is in progress: the disk is not replaced then.
    pub fn replace(&self, disk: Arc<dyn BlockDevice>) -> Result<(), Busy> {
        // Requests count themselves under this lock.
        let mut now = self.0.present_mut();
        if now.is_held || self.0.under_way.load(Ordering::Acquire) > 0 {
            return Err(Busy);
        }
        if !self.is_lost() {
            now.is_held = true;
            self.0.enter(Phase::Replaced(now.disk.clone()));
        }
        now.disk = disk;
        Ok(())
    }

    /// Ends a rest, and reinstates the replaced disk, if any, unless [`settle`](Self::settle) was called.
    /// Waiting changes go to the reinstated disk.
    pub fn take_back(&self) {
        self.undo(0);
    }

    /// Does the same as [`take_back`](Self::take_back), but the waiting changes fail, because whoever made
    /// them began with the new disk and has ended.
    pub fn abandon(&self) {
        self.undo(1);
    }

    fn undo(&self, abandoned: u64) {
        let phase = self.0.durability().phase.clone();
        match phase {
            Phase::Replaced(old) => {
                let mut now = self.0.present_mut();
                let abandoned = now.abandoned + abandoned;
                *now = Present { disk: old, is_held: false, abandoned };
                drop(now);
                self.0.enter(Phase::Usual);
            }
            Phase::Resting => self.0.enter(Phase::Usual),
            Phase::Usual | Phase::Unsettled(_) | Phase::Lost => {}
        }
    }

    /// Fails the flushes that wait for [`go_on`](Self::go_on), which will not be called, and all later ones.
    pub fn give_up(&self) {
        let is_unsettled = matches!(self.0.durability().phase, Phase::Unsettled(_));
        if is_unsettled {
            self.0.enter(Phase::Lost);
        }
    }

    /// Lets changes proceed, and makes the replaced disk durable. Flushes still wait, because renames may
    /// have to follow. If it cannot be made durable, all flushes fail from then on.
    pub fn settle(&self, cx: &Ctx) -> Answer<()> {
        let phase = self.0.durability().phase.clone();
        match phase {
            Phase::Usual | Phase::Resting => Answer::ok(()),
            Phase::Lost => Answer::err(lost()),
            Phase::Replaced(old) | Phase::Unsettled(old) => {
                self.0.present_mut().is_held = false;
                self.0.enter(Phase::Unsettled(old.clone()));
                let flushed = old.flush(cx);
                old.submit();
                let inner = self.0.clone();
                flushed.map_result(move |done| done.inspect_err(|_| inner.enter(Phase::Lost)))
            }
        }
    }

    /// Resumes flushes.
    pub fn go_on(&self) {
        self.0.enter_unless_lost(Phase::Usual);
    }

    /// Replaces a disk that is only read by another one with the same contents.
    pub fn renew(&self, disk: Arc<dyn BlockDevice>) {
        self.0.present_mut().disk = disk;
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
        if stability == Stability::Unstable || self.0.is_usual() {
            return self.0.change(cx, move |disk, cx| disk.write(cx, offset, stability, from));
        }
        self.0.in_two_steps(cx, move |disk, cx| disk.write(cx, offset, Stability::Unstable, from))
    }

    fn flush(&self, cx: &Ctx) -> Answer<()> {
        self.0.flush(cx)
    }

    fn discard(&self, cx: &Ctx, range: Range) -> Answer<()> {
        self.0.change(cx, move |disk, cx| disk.discard(cx, range))
    }

    fn write_zeroes(&self, cx: &Ctx, range: Range, how: Zeroing) -> Answer<()> {
        if how.stability == Stability::Unstable || self.0.is_usual() {
            return self.0.change(cx, move |disk, cx| disk.write_zeroes(cx, range, how));
        }
        let how = Zeroing { stability: Stability::Unstable, ..how };
        self.0.in_two_steps(cx, move |disk, cx| disk.write_zeroes(cx, range, how))
    }

    fn extents(&self, cx: &Ctx, range: Range, count_max: usize) -> Answer<Extents> {
        self.now().extents(cx, range, count_max)
    }

    fn submit(&self) {
        self.now().submit();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use tombolo_back_memory::MemoryDisk;
    use tombolo_core::{Result, SessionId};
    use tombolo_mem::Buffer;

    use super::*;

    /// A disk that counts its flushes, which may fail.
    struct FlushCounter {
        inner: Arc<dyn BlockDevice>,
        flushes: AtomicUsize,
        fails: AtomicBool,
    }

    impl FlushCounter {
        fn new() -> Arc<Self> {
            let inner = Arc::new(MemoryDisk::new(1 << 20).expect("a disk"));
            Arc::new(Self { inner, flushes: AtomicUsize::new(0), fails: AtomicBool::new(false) })
        }

        fn flushes(&self) -> usize {
            self.flushes.load(Ordering::Acquire)
        }
    }

    impl BlockDevice for FlushCounter {
        fn profile(&self) -> Profile {
            self.inner.profile()
        }
        fn geometry(&self) -> Geometry {
            self.inner.geometry()
        }
        fn read(&self, cx: &Ctx, offset: u64, into: Sink) -> Answer<()> {
            self.inner.read(cx, offset, into)
        }
        fn write(&self, cx: &Ctx, offset: u64, stability: Stability, from: Source) -> Answer<()> {
            self.inner.write(cx, offset, stability, from)
        }
        fn flush(&self, _cx: &Ctx) -> Answer<()> {
            self.flushes.fetch_add(1, Ordering::AcqRel);
            if self.fails.load(Ordering::Acquire) { Answer::err(lost()) } else { Answer::ok(()) }
        }
        fn discard(&self, cx: &Ctx, range: Range) -> Answer<()> {
            self.inner.discard(cx, range)
        }
        fn write_zeroes(&self, cx: &Ctx, range: Range, how: Zeroing) -> Answer<()> {
            self.inner.write_zeroes(cx, range, how)
        }
        fn extents(&self, cx: &Ctx, range: Range, count_max: usize) -> Answer<Extents> {
            self.inner.extents(cx, range, count_max)
        }
    }

    fn cx() -> Ctx {
        Ctx::root(SessionId(0))
    }

    fn write(disk: &dyn BlockDevice, stability: Stability, byte: u8) -> Answer<()> {
        disk.write(&cx(), 0, stability, Source::from(vec![byte; 512]))
    }

    fn first_byte(disk: &dyn BlockDevice) -> u8 {
        let mut buffer = Buffer::new(512);
        disk.read(&cx(), 0, buffer.sink(0..512)).wait().expect("read");
        buffer.as_slice().expect("read")[0]
    }

    #[test]
    fn writes_switch_and_flushes_wait_for_both_disks() {
        let (old, new) = (FlushCounter::new(), FlushCounter::new());
        let switch = Switch::new(old.clone());
        write(&switch, Stability::Unstable, 1).wait().expect("written");
        switch.rest();
        switch.flush(&cx()).wait().expect("answered at once");
        assert_eq!(old.flushes(), 0);
        switch.replace(new.clone()).expect("nothing is under way");
        switch.settle(&cx()).wait().expect("durable");
        assert_eq!(old.flushes(), 1);
        write(&switch, Stability::Unstable, 2).wait().expect("written");
        assert_eq!((first_byte(&*old), first_byte(&*new)), (1, 2));
        let waits = [switch.flush(&cx()), write(&switch, Stability::DataSync, 3)];
        assert!(waits.iter().all(|answer| !answer.is_done()));
        let waiting = thread::spawn(move || waits.map(Answer::wait));
        assert_eq!((old.flushes(), new.flushes()), (1, 0), "names are to follow");
        switch.go_on();
        let done = waiting.join().expect("no panic");
        assert!(done.iter().all(Result::is_ok) && new.flushes() == 2);
        assert_eq!(first_byte(&*new), 3);
    }

    #[test]
    fn it_is_not_replaced_while_something_is_under_way() {
        let switch = Switch::new(FlushCounter::new());
        let under_way = switch.0.change(&cx(), |_, _| Answer::<()>::later(std::future::pending()));
        assert_eq!(switch.replace(FlushCounter::new()), Err(Busy));
        drop(under_way);
    }

    /// Replaces a disk, and decides on that with `decide` while a write, a durable write and a flush wait.
    /// Returns their results, and the old and the new disk.
    fn decided(decide: impl FnOnce(&Switch)) -> ([Result<()>; 3], Arc<FlushCounter>, Arc<FlushCounter>) {
        let (old, new) = (FlushCounter::new(), FlushCounter::new());
        let switch = Switch::new(old.clone());
        switch.rest();
        switch.replace(new.clone()).expect("nothing is under way");
        let unstable = write(&switch, Stability::Unstable, 7);
        let waits = [unstable, write(&switch, Stability::DataSync, 7), switch.flush(&cx())];
        assert!(waits.iter().all(|answer| !answer.is_done()));
        assert_eq!((first_byte(&*old), first_byte(&*new)), (0, 0));
        let waiting = thread::spawn(move || waits.map(Answer::wait));
        decide(&switch);
        (waiting.join().expect("no panic"), old, new)
    }

    #[test]
    fn changes_wait_until_replacement_is_confirmed_or_undone() {
        let confirm = |switch: &Switch| {
            switch.settle(&cx()).wait().expect("durable");
            switch.take_back();
            switch.go_on();
        };
        for is_undone in [false, true] {
            let decide = if is_undone { Switch::take_back } else { confirm };
            let (done, old, new) = decided(decide);
            assert!(done.iter().all(Result::is_ok), "{done:?}");
            let (taken, other) = if is_undone { (old, new) } else { (new, old) };
            assert_eq!((first_byte(&*taken), first_byte(&*other)), (7, 0), "{is_undone}");
            assert_eq!(taken.flushes(), 2, "{is_undone}");
        }
    }

    #[test]
    fn changes_of_an_abandoned_replacement_reach_no_disk() {
        let (done, old, new) = decided(|switch| {
            switch.abandon();
            write(switch, Stability::Unstable, 0).wait().expect("later ones are accepted");
            // Their wait ends with that of another replacement.
            switch.replace(FlushCounter::new()).expect("nothing is under way");
            switch.take_back();
        });
        assert!(done[0].is_err() && done[1].is_err(), "{done:?}");
        assert_eq!((first_byte(&*old), first_byte(&*new)), (0, 0));
    }

    #[test]
    fn waiting_flushes_fail_once_given_up() {
        let (done, _, new) = decided(|switch| {
            switch.settle(&cx()).wait().expect("durable");
            switch.give_up();
        });
        assert!(done[0].is_ok() && done[1].is_err() && done[2].is_err(), "{done:?}");
        assert_eq!((first_byte(&*new), new.flushes()), (7, 0));
    }

    #[test]
    fn no_flush_succeeds_after_the_old_one_was_lost() {
        let old = FlushCounter::new();
        old.fails.store(true, Ordering::Release);
        let switch = Switch::new(old);
        switch.replace(FlushCounter::new()).expect("nothing is under way");
        let waits = switch.flush(&cx());
        switch.settle(&cx()).wait().expect_err("it fails");
        switch.go_on();
        waits.wait().expect_err("not durable");
        switch.flush(&cx()).wait().expect_err("not durable");
        // A further attempt does not change that.
        switch.rest();
        assert!(switch.is_lost());
        switch.flush(&cx()).wait().expect_err("not durable");
        switch.take_back();
        assert!(switch.is_lost());
        switch.flush(&cx()).wait().expect_err("not durable");
    }
}
