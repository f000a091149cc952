//! Model of the choice of the receiving thread, run under a checker that explores interleavings: the steps of
//! `links::client::{intake, park, receiver}`. A lost wake-up is a deadlock here, as nothing has a
//! time-out, except that the receiver thread may find the doorbell silent at any time.
//!
//! The model shows that the steps are correct in every order; the code's own tests show that it takes them.

use std::collections::VecDeque;

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::SeqCst};
use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard, mpsc};
use shuttle::thread::{self, Thread};

const CALLERS: usize = 3;
const CALLS: usize = 2;
const RUNS: usize = 2_000;

/// Steps that can be omitted, to show that each is needed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// The second check after arming.
    SecondLook,
    /// The check of registered calls after the lead is released.
    LastLook,
    /// Arming when the lead is released.
    Arming,
    /// Sleeping on the doorbell's count from before the check.
    Count,
}

#[derive(Default)]
struct Intake {
    armed: bool,
    number: u32,
    is_receiving: bool,
}

/// Parking place of one thread.
type Parker = (Mutex<bool>, Condvar);

struct Line {
    without: Without,
    ring: Mutex<VecDeque<usize>>,
    /// The notify flag, and the server's doorbell.
    asleep: AtomicU32,
    doorbell: AtomicU32,
    hearing: (Mutex<()>, Condvar),
    /// Parking place of the receiver thread.
    called: Parker,
    intake: Mutex<Intake>,
    waiting: AtomicUsize,
    is_armed: AtomicBool,
    answered: Vec<AtomicBool>,
    completions: Vec<Mutex<Option<Thread>>>,
    over: AtomicBool,
}

impl Line {
    fn new(without: Without) -> Line {
        let calls = CALLERS * CALLS;
        Line {
            without,
            ring: Mutex::default(),
            asleep: AtomicU32::new(0),
            doorbell: AtomicU32::new(0),
            hearing: (Mutex::new(()), Condvar::new()),
            called: (Mutex::new(false), Condvar::new()),
            intake: Mutex::default(),
            waiting: AtomicUsize::new(0),
            is_armed: AtomicBool::new(false),
            answered: (0..calls).map(|_| AtomicBool::new(false)).collect(),
            completions: (0..calls).map(|_| Mutex::new(None)).collect(),
            over: AtomicBool::new(false),
        }
    }

    // The server.

    fn serve(&self, requests: &mpsc::Receiver<usize>) {
        let mut ended = 0;
        while let Ok(call) = requests.recv() {
            self.ring.lock().unwrap().push_back(call);
            let sleep = self.asleep.load(SeqCst);
            if sleep % 2 == 1 && sleep != ended {
                self.doorbell.fetch_add(1, SeqCst);
                self.wake();
                ended = sleep;
            }
        }
    }

    fn wake(&self) {
        let _asleep = self.hearing.0.lock().unwrap();
        self.hearing.1.notify_one();
    }

    fn sleep(&self, rung: u32) {
        let asleep = self.hearing.0.lock().unwrap();
        let is_rung = self.doorbell.load(SeqCst) != rung && self.without != Without::Count;
        if !(is_rung || self.over.load(SeqCst)) {
            drop(self.hearing.1.wait(asleep).unwrap());
        }
    }

    // The leader.

    /// Takes out all messages. Returns `true` if `own` is among them. The wakers of other calls go to
    /// `wakes`.
    fn drain(&self, own: Option<usize>, wakes: &mut Vec<Thread>) -> bool {
        loop {
            let Some(call) = self.ring.lock().unwrap().pop_front() else { return false };
            let mut completion = self.completions[call].lock().unwrap();
            self.answered[call].store(true, SeqCst);
            if let Some(thread) = completion.take() {
                self.waiting.fetch_sub(1, SeqCst);
                wakes.push(thread);
            }
            if Some(call) == own {
                return true;
            }
        }
    }

    fn arm(&self, intake: &mut Intake) {
        intake.armed = true;
        intake.number = intake.number.wrapping_add(1) | 1;
        self.asleep.store(intake.number, SeqCst);
    }

    fn disarm(&self, intake: &mut Intake) {
        if intake.armed {
            intake.armed = false;
            intake.number += 1;
            self.asleep.store(intake.number, SeqCst);
            self.is_armed.store(false, SeqCst);
        }
    }

    fn leave<'a>(&'a self, mut intake: MutexGuard<'a, Intake>, wakes: &mut Vec<Thread>) {
        loop {
            let is_needed = wakes.is_empty() && self.waiting.load(SeqCst) > 0 && !intake.armed;
            if is_needed && self.without != Without::Arming {
                self.arm(&mut intake);
                let is_ready = !self.ring.lock().unwrap().is_empty();
                if is_ready && self.without != Without::SecondLook {
                    self.disarm(&mut intake);
                    self.drain(None, wakes);
                    continue;
                }
                self.is_armed.store(true, SeqCst);
                if !intake.is_receiving {
                    intake.is_receiving = true;
                    unpark(&self.called);
                }
            }
            drop(intake);
            wakes.drain(..).for_each(|thread| thread.unpark());
            if self.is_settled() || matches!(self.without, Without::LastLook | Without::Arming) {
                return;
            }
            match self.intake.try_lock() {
                Ok(lead) => intake = lead,
                Err(_) => return,
            }
        }
    }

    fn is_settled(&self) -> bool {
        self.waiting.load(SeqCst) == 0 || self.is_armed.load(SeqCst)
    }

    // A caller.

    fn wait(&self, call: usize) {
        let mut wakes = Vec::new();
        if let Ok(mut intake) = self.intake.try_lock() {
            if thread_rng().gen_bool(0.5) {
                self.disarm(&mut intake);
            }
            self.drain(Some(call), &mut wakes);
            self.leave(intake, &mut wakes);
        }
        if thread_rng().gen_bool(0.5) {
            self.park(call);
        }
        self.register(call);
        while !self.answered[call].load(SeqCst) {
            thread::park();
        }
    }

    fn register(&self, call: usize) {
        let mut completion = self.completions[call].lock().unwrap();
        if self.answered[call].load(SeqCst) {
            return;
        }
        self.waiting.fetch_add(1, SeqCst);
        *completion = Some(thread::current());
        drop(completion);
        if self.is_settled() {
            return;
        }
        if let Ok(intake) = self.intake.try_lock() {
            self.leave(intake, &mut Vec::new());
        }
    }

    fn park(&self, call: usize) {
        let Ok(mut intake) = self.intake.try_lock() else { return };
        let mut wakes = Vec::new();
        let is_alone = !intake.is_receiving && self.waiting.load(SeqCst) == 0;
        while is_alone && !self.answered[call].load(SeqCst) {
            let rung = self.doorbell.load(SeqCst);
            self.arm(&mut intake);
            if self.drain(Some(call), &mut wakes) || !wakes.is_empty() {
                break;
            }
            self.sleep(rung);
        }
        self.disarm(&mut intake);
        self.leave(intake, &mut wakes);
    }

    // The receiver thread.

    fn receive(&self) {
        while !self.over.load(SeqCst) {
            park(&self.called);
            while !self.over.load(SeqCst) {
                let rung = self.doorbell.load(SeqCst);
                let mut wakes = Vec::new();
                let mut intake = self.intake.lock().unwrap();
                self.disarm(&mut intake);
                self.drain(None, &mut wakes);
                self.leave(intake, &mut wakes);
                if thread_rng().gen_bool(0.3) && self.is_dismissed() {
                    break;
                }
                self.sleep(rung);
            }
        }
    }

    fn is_dismissed(&self) -> bool {
        let mut intake = self.intake.lock().unwrap();
        let is_dismissed = self.waiting.load(SeqCst) == 0;
        if is_dismissed {
            self.disarm(&mut intake);
            intake.is_receiving = false;
        }
        self.leave(intake, &mut Vec::new());
        is_dismissed
    }
}

fn unpark(parker: &Parker) {
    *parker.0.lock().unwrap() = true;
    parker.1.notify_one();
}

fn park(parker: &Parker) {
    let mut is_unparked = parker.0.lock().unwrap();
    while !*is_unparked {
        is_unparked = parker.1.wait(is_unparked).unwrap();
    }
    *is_unparked = false;
}

fn run(without: Without) {
    let line = Arc::new(Line::new(without));
    let (sender, requests) = mpsc::channel();
    let server = thread::spawn({
        let line = line.clone();
        move || line.serve(&requests)
    });
    let receiver = thread::spawn({
        let line = line.clone();
        move || line.receive()
    });
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (line, sender) = (line.clone(), sender.clone());
            thread::spawn(move || {
                for call in (0..CALLS).map(|call| caller * CALLS + call) {
                    sender.send(call).unwrap();
                    line.wait(call);
                }
            })
        })
        .collect();
    drop(sender);
    callers.into_iter().for_each(|caller| caller.join().unwrap());
    server.join().unwrap();
    line.over.store(true, SeqCst);
    unpark(&line.called);
    line.wake();
    receiver.join().unwrap();
}

#[test]
fn no_wake_up_is_lost() {
    shuttle::check_random(|| run(Without::Nothing), RUNS);
    shuttle::check_pct(|| run(Without::Nothing), RUNS, 4);
}

#[test]
fn each_step_is_needed() {
    for without in [Without::SecondLook, Without::LastLook, Without::Arming, Without::Count] {
        let found = std::panic::catch_unwind(|| {
            shuttle::check_random(move || run(without), RUNS);
            shuttle::check_pct(move || run(without), RUNS, 4);
        });
        assert!(found.is_err(), "step {} can be left out", without as u32);
    }
}
