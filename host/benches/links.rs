//! What a request over a link costs over a bare cache line: `cargo bench -p tombolo-host --bench links`.
//!
//! Rounds of each row are made in turn, so that whatever else the machine does befalls all. An argument chooses rows by a part of
//! their name.
#![allow(clippy::print_stdout, reason = "it prints a table")]

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tombolo_host::links::client::{Call, Line};
use tombolo_host::links::server::{LinkHandle, Peer, Refusal, Request, Responder, Server, Service, Session};
use tombolo_mem::{Region, WordMut};
use tombolo_shm::bell::Mode;
use tombolo_shm::link::{Ends, Instance, Layout};
use tombolo_sys::{affinity, futex};

const ROUNDS: usize = 7;
const TIME: Duration = Duration::from_millis(100);

type Row = (&'static str, fn(&[usize]) -> [f64; 3]);

const ROWS: [Row; 8] = [
    ("bare cache lines", bare),
    ("bare futex", bare_futex),
    ("null, both poll", |cores| null(cores, Mode::Poll, 0)),
    ("null, adaptive", |cores| null(cores, Mode::Adaptive, 0)),
    ("null, event", |cores| null(cores, Mode::Event, 0)),
    ("256 bytes, both poll", |cores| null(cores, Mode::Poll, 256)),
    ("64 outstanding, both poll", |cores| outstanding(cores, Mode::Poll)),
    ("64 outstanding, adaptive", |cores| outstanding(cores, Mode::Adaptive)),
];

fn main() {
    let cores = affinity::cores(None).expect("cores");
    let wanted = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    let rows: Vec<_> = ROWS.iter().filter(|row| row.0.contains(&wanted)).collect();
    let mut rounds: Vec<Vec<[f64; 3]>> = rows.iter().map(|_| Vec::new()).collect();
    for _ in 0..ROUNDS {
        for (row, round) in rows.iter().zip(&mut rounds) {
            round.push(row.1(&cores));
        }
    }
    println!("cores {cores:?}; medians of {ROUNDS} rounds in turn");
    println!("{:>28} {:>9} {:>9} {:>12}", "", "p50 ns", "p99 ns", "1/s");
    for (row, round) in rows.iter().zip(&rounds) {
        let column = |at: usize| median(round.iter().map(|row| row[at]).collect());
        println!("{:>28} {:>9.0} {:>9.0} {:>12.0}", row.0, column(0), column(1), column(2));
    }
    if "idle".contains(&wanted) {
        for mode in [Mode::Event, Mode::Adaptive] {
            println!(
                "{:>28} {:.2} % of a processor for a second, {mode}",
                "idle",
                idle(&cores, mode) * 100.0
            );
        }
    }
}

/// Two threads hand a number to and fro, each in its own cache line.
fn bare(cores: &[usize]) -> [f64; 3] {
    #[derive(Default)]
    #[repr(align(128))]
    struct Line(AtomicU64);
    let lines = Arc::new((Line::default(), Line::default(), AtomicBool::new(false)));
    let there = lines.clone();
    pin(cores, 1);
    let other = thread::spawn(move || {
        let mut next = 1;
        while !there.2.load(Ordering::Relaxed) {
            if there.0.0.load(Ordering::Acquire) == next {
                there.1.0.store(next, Ordering::Release);
                next += 1;
            }
            spin_loop();
        }
    });
    pin(cores, 0);
    let mut number = 0;
    let figures = measure(|| {
        number += 1;
        lines.0.0.store(number, Ordering::Release);
        while lines.1.0.load(Ordering::Acquire) != number {
            spin_loop();
        }
    });
    lines.2.store(true, Ordering::Relaxed);
    other.join().expect("no panic");
    figures
}

/// The same, asleep in between.
fn bare_futex(cores: &[usize]) -> [f64; 3] {
    let region = Region::heap(256);
    let word = |at| WordMut::new(&region, at).expect("a word");
    let (to, fro, over) = (word(0), word(128), Arc::new(AtomicBool::new(false)));
    let await_number = |word: &WordMut, number: u32, over: &AtomicBool| loop {
        let seen = word.load(Ordering::Acquire);
        if seen == number || over.load(Ordering::Relaxed) {
            return;
        }
        futex::wait(word, seen, Some(Duration::from_millis(100))).expect("a sleep");
    };
    let (there, back, over_there) = (to.clone(), fro.clone(), over.clone());
    pin(cores, 1);
    let other = thread::spawn(move || {
        let mut next = 1;
        while !over_there.load(Ordering::Relaxed) {
            await_number(&there, next, &over_there);
            back.store(next, Ordering::Release);
            futex::wake(&back).expect("a wake-up");
            next += 1;
        }
    });
    pin(cores, 0);
    let mut number = 0;
    let figures = measure(|| {
        number += 1;
        to.store(number, Ordering::Release);
        futex::wake(&to).expect("a wake-up");
        await_number(&fro, number, &over);
    });
    over.store(true, Ordering::Relaxed);
    other.join().expect("no panic");
    figures
}

fn null(cores: &[usize], mode: Mode, bytes: usize) -> [f64; 3] {
    let bed = Bed::start(cores, mode);
    let sent = vec![7; bytes];
    measure(|| {
        let reply = bed.line.call(1, [0; 48], |writer| writer.put(&sent)).wait().expect("an answer");
        assert_eq!(reply.frame.len(), bytes);
    })
}

fn outstanding(cores: &[usize], mode: Mode) -> [f64; 3] {
    let bed = Bed::start(cores, mode);
    let call = || bed.line.call(1, [0; 48], |_| {});
    let mut calls: std::collections::VecDeque<Call> = (0..64).map(|_| call()).collect();
    let figures = measure(|| {
        calls.pop_front().expect("64 calls").wait().expect("an answer");
        calls.push_back(call());
    });
    calls.into_iter().for_each(|call| drop(call.wait()));
    figures
}

/// Processor time of an idle link, per second; a call before that, so that it is not fresh.
fn idle(cores: &[usize], mode: Mode) -> f64 {
    let bed = Bed::start(cores, mode);
    bed.line.call(1, [0; 48], |_| {}).wait().expect("an answer");
    thread::sleep(Duration::from_millis(10));
    let before = process_time();
    thread::sleep(Duration::from_secs(1));
    (process_time() - before).as_secs_f64()
}

struct Bed {
    line: Line,
    _handle: LinkHandle,
    _server: Server,
}

impl Bed {
    fn start(cores: &[usize], mode: Mode) -> Bed {
        let (client, ends) = Ends::in_memory(Layout::with_bulk(64, 8, 1 << 20).expect("a layout"));
        let server = Server::new(Arc::new(Null));
        let peer = Peer {
            export: String::new(),
            credentials: None,
            client: Instance([0; 16]),
            label: "bench".into(),
        };
        let session = server.open(&peer).expect("a session");
        pin(cores, 1);
        let handle = server.serve(&ends, &peer, session, mode).expect("a link");
        pin(cores, 0);
        let line = Line::start(&client, "bench", mode).expect("a line");
        Bed { line, _handle: handle, _server: server }
    }
}

/// Answers with what it was sent.
struct Null;

impl Service for Null {
    fn open(&self, _peer: &Peer) -> Result<Arc<dyn Session>, Refusal> {
        Ok(Arc::new(Null))
    }
}

impl Session for Null {
    fn serve(&self, request: Request<'_>, responder: Responder) {
        responder.send(request.kind, request.body, request.frame);
    }
}

/// Median and 99th percentile of one in nanoseconds, and how many in a second. The clock is read for every eighth only.
fn measure(mut once: impl FnMut()) -> [f64; 3] {
    const EACH: u32 = 8;
    (0..1000).for_each(|_| once());
    let (begin, mut times) = (Instant::now(), Vec::with_capacity(1 << 17));
    let mut last = begin;
    while last - begin < TIME {
        (0..EACH).for_each(|_| once());
        let now = Instant::now();
        times.push((now - last).as_nanos() as f64 / f64::from(EACH));
        last = now;
    }
    let rate = times.len() as f64 * f64::from(EACH) / (last - begin).as_secs_f64();
    times.sort_by(f64::total_cmp);
    [times[times.len() / 2], times[times.len() * 99 / 100], rate]
}

fn pin(cores: &[usize], at: usize) {
    affinity::pin(None, &[cores[at % cores.len()]]).expect("pin");
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn process_time() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
