//! Model of the id cache and its lock, run under a checker that explores interleavings: the steps of
//! `links::client::ids`. A request that waits although an id is free is a deadlock here.

use std::collections::VecDeque;

use shuttle::sync::atomic::{AtomicBool, Ordering::SeqCst};
use shuttle::sync::mpsc::{Sender, channel};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;

const RUNS: usize = 2_000;

/// Steps that can be omitted, to show that each is needed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// After an id was cached: the check whether it is wanted.
    LastLook,
    /// After a request was queued: the check of the cache.
    SecondLook,
}

/// A single id, so its presence is the whole state.
struct Ids {
    without: Without,
    cached: AtomicBool,
    is_wanted: AtomicBool,
    /// `true` if the id is free under the lock, and the queued requests.
    inner: Mutex<(bool, VecDeque<Sender<()>>)>,
}

impl Ids {
    fn take(&self) -> bool {
        self.cached.swap(false, SeqCst) || std::mem::take(&mut self.inner.lock().unwrap().0)
    }

    fn take_or_wait(&self, waiter: Sender<()>) -> bool {
        let mut inner = self.inner.lock().unwrap();
        if std::mem::take(&mut inner.0) || self.cached.swap(false, SeqCst) {
            return true;
        }
        inner.1.push_back(waiter);
        self.is_wanted.store(true, SeqCst);
        let is_there = self.without != Without::SecondLook && self.cached.swap(false, SeqCst);
        if is_there {
            inner.1.pop_back();
            self.is_wanted.store(!inner.1.is_empty(), SeqCst);
        }
        is_there
    }

    fn give_back(&self) {
        if !self.is_wanted.load(SeqCst) && self.cached.compare_exchange(false, true, SeqCst, SeqCst).is_ok() {
            if self.without == Without::LastLook || !self.is_wanted.load(SeqCst) {
                return;
            }
            if !self.cached.swap(false, SeqCst) {
                return;
            }
        }
        let mut inner = self.inner.lock().unwrap();
        match inner.1.pop_front() {
            Some(waiter) => {
                self.is_wanted.store(!inner.1.is_empty(), SeqCst);
                drop(inner);
                waiter.send(()).expect("it waits");
            }
            None => inner.0 = true,
        }
    }
}

/// One thread returns the id; two others take it if it is free, or wait.
fn run(without: Without) {
    let inner = Mutex::new((false, VecDeque::new()));
    let ids =
        Arc::new(Ids { without, cached: AtomicBool::new(false), is_wanted: AtomicBool::new(false), inner });
    let want = |ids: Arc<Ids>| {
        move || {
            let (waiter, given) = channel();
            if !ids.take() && !ids.take_or_wait(waiter) {
                given.recv().expect("the id");
            }
            ids.give_back();
        }
    };
    let threads = [
        thread::spawn(want(ids.clone())),
        thread::spawn(want(ids.clone())),
        thread::spawn({
            let ids = ids.clone();
            move || {
                if ids.take() {
                    ids.give_back();
                }
            }
        }),
    ];
    ids.give_back();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(ids.take() && !ids.take(), "there is one id at the end, as there was");
}

#[test]
fn no_request_waits_for_an_id_that_is_free() {
    // The long run (`make test-long`) tries more.
    let runs = if std::env::var_os("TOMBOLO_LONG").is_some() { 8 * RUNS } else { RUNS };
    shuttle::check_random(|| run(Without::Nothing), runs);
    shuttle::check_pct(|| run(Without::Nothing), runs, 3);
}

#[test]
fn each_step_is_needed() {
    for without in [Without::LastLook, Without::SecondLook] {
        let found = std::panic::catch_unwind(|| {
            shuttle::check_random(move || run(without), RUNS);
            shuttle::check_pct(move || run(without), RUNS, 3);
        });
        assert!(found.is_err(), "step {} can be left out", without as u32);
    }
}
