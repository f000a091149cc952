//! Replacement of a disk in use.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tombolo_back_memory::MemoryDisk;
use tombolo_core::block::BlockDevice;
use tombolo_core::{Answer, Ctx, Error, Result, SessionId, Stability};
use tombolo_layer_basic::switch::{Refusal, Switch};
use tombolo_mem::{Buffer, Source};

/// A disk that counts its flushes, which may fail, and its durable writes.
struct FlushCounter {
    inner: Arc<dyn BlockDevice>,
    flushes: AtomicUsize,
    fails: AtomicBool,
    /// `true` while flushes are answered only when polled.
    is_late: AtomicBool,
}

impl FlushCounter {
    fn new() -> Arc<Self> {
        let inner = Arc::new(MemoryDisk::new(1 << 20).expect("a disk"));
        let (fails, is_late) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { inner, flushes: AtomicUsize::new(0), fails, is_late })
    }

    fn late() -> Arc<Self> {
        let disk = Self::new();
        disk.is_late.store(true, Ordering::Release);
        disk
    }

    fn flushes(&self) -> usize {
        self.flushes.load(Ordering::Acquire)
    }
}

impl BlockDevice for FlushCounter {
    tombolo_core::forward_disk!(to self.inner; profile geometry read discard write_zeroes extents);

    fn write(&self, cx: &Ctx, offset: u64, stability: Stability, from: Source) -> Answer<()> {
        self.flushes.fetch_add(usize::from(stability != Stability::Unstable), Ordering::AcqRel);
        self.inner.write(cx, offset, stability, from)
    }

    fn flush(&self, _cx: &Ctx) -> Answer<()> {
        self.flushes.fetch_add(1, Ordering::AcqRel);
        let fails = self.fails.load(Ordering::Acquire);
        let flushed = if fails { Err(Error::io("not durable")) } else { Ok(()) };
        match self.is_late.load(Ordering::Acquire) {
            true => Answer::later(async { flushed }),
            false => Answer::Done(flushed),
        }
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

fn flush(switch: &Switch) -> Answer<()> {
    switch.disk().flush(&cx())
}

#[test]
fn writes_switch_and_flushes_wait_for_both_disks() {
    let (old, new) = (FlushCounter::new(), FlushCounter::new());
    let switch = Switch::new(old.clone());
    write(&switch, Stability::Unstable, 1).wait().expect("written");
    switch.rest().expect("nothing is replaced");
    flush(&switch).wait().expect("answered at once");
    assert_eq!(old.flushes(), 0);
    switch.replace(new.clone()).expect("nothing is under way");
    switch.settle(&cx()).wait().expect("durable");
    assert_eq!(old.flushes(), 1);
    write(&switch, Stability::Unstable, 2).wait().expect("written");
    assert_eq!((first_byte(&*old), first_byte(&*new)), (1, 2));
    let waits = [flush(&switch), write(&switch, Stability::DataSync, 3)];
    assert!(waits.iter().all(|answer| !answer.is_done()));
    let waiting = thread::spawn(move || waits.map(Answer::wait));
    assert_eq!((old.flushes(), new.flushes()), (1, 0), "names are to follow");
    switch.go_on().expect("durable");
    let done = waiting.join().expect("no panic");
    assert!(done.iter().all(Result::is_ok) && new.flushes() == 2);
    assert_eq!(first_byte(&*new), 3);
}

#[test]
fn flushes_wait_until_old_disk_is_durable() {
    let (old, new) = (FlushCounter::late(), FlushCounter::new());
    let switch = Switch::new(old.clone());
    switch.replace(new.clone()).expect("nothing is under way");
    let settled = switch.settle(&cx());
    assert!(!settled.is_done());
    assert_eq!(switch.go_on(), Err(Refusal::Unfinished));
    let waits = flush(&switch);
    assert!(!waits.is_done() && new.flushes() == 0, "the old disk is not durable yet");
    settled.wait().expect("durable");
    switch.go_on().expect("durable");
    waits.wait().expect("both are durable");
    assert_eq!((old.flushes(), new.flushes()), (1, 1));
}

#[test]
fn unfinished_replacement_refuses_other_steps() {
    let (old, new) = (FlushCounter::late(), FlushCounter::new());
    let switch = Switch::new(old.clone());
    let assert_refused = |switch: &Switch| {
        assert_eq!(switch.rest(), Err(Refusal::Unfinished));
        assert_eq!(switch.replace(FlushCounter::new()), Err(Refusal::Unfinished), "the old one is forgotten");
    };
    switch.replace(new.clone()).expect("nothing is under way");
    assert_refused(&switch);
    assert_eq!(switch.go_on(), Err(Refusal::Unfinished));
    let waits = [write(&switch, Stability::Unstable, 1), flush(&switch)];
    assert!(waits.iter().all(|answer| !answer.is_done()));
    let settled = switch.settle(&cx());
    assert_refused(&switch);
    settled.wait().expect("durable");
    assert_refused(&switch);
    let waiting = thread::spawn(move || waits.map(Answer::wait));
    switch.go_on().expect("durable");
    waiting.join().expect("no panic").into_iter().for_each(|done| done.expect("on the new disk"));
    assert_eq!((first_byte(&*old), first_byte(&*new), new.flushes()), (0, 1, 1));
    switch.rest().expect("the replacement is finished");
}

#[test]
fn flush_that_meets_a_replacement_waits_for_it() {
    for stability in [None, Some(Stability::DataSync)] {
        let new = FlushCounter::new();
        let switch = Switch::new(FlushCounter::late());
        let (asking, asked) = mpsc::channel();
        let asker = switch.clone();
        let flushed = thread::spawn(move || {
            asking.send(()).expect("the test");
            stability.map_or_else(|| flush(&asker), |stability| write(&asker, stability, 1)).wait()
        });
        asked.recv().expect("the thread");
        thread::sleep(Duration::from_millis(50));
        while switch.replace(new.clone()) == Err(Refusal::Busy) {
            thread::yield_now();
        }
        let settled = switch.settle(&cx());
        // It has ended before the replacement, or waits for it.
        let end = Instant::now() + Duration::from_secs(1);
        while !flushed.is_finished() && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(new.flushes(), 0, "the old disk is not durable yet");
        settled.wait().expect("durable");
        switch.go_on().expect("durable");
        flushed.join().expect("no panic").expect("durable");
    }
}

#[test]
fn replacement_is_refused_until_requests_are_answered() {
    for is_dropped in [false, true] {
        let switch = Switch::new(FlushCounter::late());
        let under_way = flush(&switch);
        assert_eq!(switch.replace(FlushCounter::new()), Err(Refusal::Busy));
        if is_dropped {
            drop(under_way);
        } else {
            under_way.wait().expect("durable");
        }
        // The disk may still be at work on a request whose answer nobody waits for.
        assert_eq!(switch.replace(FlushCounter::new()).is_err(), is_dropped);
    }
}

/// Replaces a disk, and decides on that with `decide` while a write, a durable write and a flush wait.
/// Returns their results, and the old and the new disk.
fn decided(decide: impl FnOnce(&Switch)) -> ([Result<()>; 3], Arc<FlushCounter>, Arc<FlushCounter>) {
    let (old, new) = (FlushCounter::new(), FlushCounter::new());
    let switch = Switch::new(old.clone());
    switch.rest().expect("nothing is replaced");
    switch.replace(new.clone()).expect("nothing is under way");
    let unstable = write(&switch, Stability::Unstable, 7);
    let waits = [unstable, write(&switch, Stability::DataSync, 7), flush(&switch)];
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
        switch.go_on().expect("durable");
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
    let waits = flush(&switch);
    switch.settle(&cx()).wait().expect_err("it fails");
    assert_eq!(switch.go_on(), Ok(()));
    waits.wait().expect_err("not durable");
    flush(&switch).wait().expect_err("not durable");
    // A further attempt does not change that.
    switch.rest().expect("no replacement is unfinished");
    assert!(switch.is_lost());
    flush(&switch).wait().expect_err("not durable");
    switch.take_back();
    assert!(switch.is_lost());
    flush(&switch).wait().expect_err("not durable");
}

#[test]
fn late_failure_of_earlier_flush_holds_no_request() {
    let old = FlushCounter::late();
    let switch = Switch::new(old.clone());
    switch.replace(FlushCounter::new()).expect("nothing is under way");
    old.fails.store(true, Ordering::Release);
    let late = switch.settle(&cx());
    old.fails.store(false, Ordering::Release);
    switch.settle(&cx()).wait().expect("durable");
    switch.go_on().expect("durable");
    let next = FlushCounter::new();
    switch.replace(next.clone()).expect("nothing is under way");
    late.wait().expect_err("it fails");
    assert!(switch.is_lost());
    let waits = write(&switch, Stability::Unstable, 1);
    flush(&switch).wait().expect_err("not durable");
    switch.take_back();
    waits.wait().expect("on the reinstated disk");
    assert_eq!((first_byte(&switch), first_byte(&*next)), (1, 0));
    switch.replace(FlushCounter::new()).expect("nothing is under way");
    switch.settle(&cx()).wait().expect_err("earlier data stays lost");
}
