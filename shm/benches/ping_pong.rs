//! A message and its answer between two threads on two cores, beside the bare thing: `cargo bench -p tombolo-shm`.
//!
//! Every column has its turn in every round; the figures are the medians of all rounds. The rings lie in memory files that
//! either side maps as two processes would.

#![allow(clippy::print_stdout, reason = "it prints a table")]

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU64, fence};
use std::thread;
use std::time::Instant;

use tombolo_mem::{Region, Word, WordMut};
use tombolo_shm::bell::{Mode, Outcome, Ringer, Sleeper};
use tombolo_shm::link::{BellKind, Ends, Epoch, Extent, Layout, Role};
use tombolo_shm::ring::{Consumer, Message, Producer};
use tombolo_sys::{affinity, futex, memfd};

const ROUNDS: usize = 15;

/// Runs once and gives nanoseconds for a round trip.
type Column = Box<dyn Fn() -> f64>;

fn main() {
    let cores = affinity::cores(None).expect("cores");
    let (Some(&first), Some(&last)) = (cores.first(), cores.last()) else { return };
    println!("round trip in ns, median of {ROUNDS} rounds in turn");
    for (what, cores, spinning) in [("two cores", [first, last], 200_000), ("one core", [first, first], 2000)]
    {
        let waiting = 10_000;
        let mut table: Vec<(&str, Column)> = vec![
            ("bare futex", Box::new(move || bare_futex(cores, waiting))),
            ("ring, event", Box::new(move || linked(cores, Mode::Event, waiting))),
            ("ring, adaptive", Box::new(move || linked(cores, Mode::Adaptive, spinning))),
            ("ring, poll", Box::new(move || linked(cores, Mode::Poll, spinning))),
        ];
        if cores[0] != cores[1] {
            table.push(("bare line", Box::new(move || bare_line(cores, spinning))));
            table.push(("bare two lines", Box::new(move || bare_lines(cores, spinning))));
            table.push(("bare ring", Box::new(move || bare_ring(cores, spinning))));
            table.push(("bare ring, fences", Box::new(move || fenced_ring(cores, spinning))));
        }
        let mut times = vec![Vec::new(); table.len()];
        for _ in 0..ROUNDS {
            for (column, times) in table.iter().zip(&mut times) {
                times.push(column.1());
            }
        }
        for ((name, _), times) in table.iter().zip(times) {
            println!("{what:>10} {name:>18} {:>10.0}", median(times));
        }
    }
}

/// Runs both sides on their cores; nanoseconds of a round trip of the first, as half of them take: others may have the
/// processor now and then.
fn time(cores: [usize; 2], count: u32, mut ask: impl FnMut(), mut answer: impl FnMut() + Send) -> f64 {
    const AT_A_TIME: u32 = 16;
    thread::scope(|scope| {
        let (on_its_core, there) = std::sync::mpsc::channel();
        scope.spawn(move || {
            affinity::pin(None, &cores[1..]).expect("a core");
            on_its_core.send(()).expect("somebody waits");
            (0..count / AT_A_TIME * AT_A_TIME).for_each(|_| answer());
        });
        affinity::pin(None, &cores[..1]).expect("a core");
        there.recv().expect("a thread");
        let one = |_| {
            let start = Instant::now();
            (0..AT_A_TIME).for_each(|_| ask());
            start.elapsed().as_nanos() as f64 / f64::from(AT_A_TIME)
        };
        median((0..count / AT_A_TIME).map(one).collect())
    })
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

#[repr(align(128))]
struct Line(AtomicU64);

/// One line that both sides write in turn.
fn bare_line(cores: [usize; 2], count: u32) -> f64 {
    let line = Line(AtomicU64::new(0));
    let until = |value| {
        while line.0.load(Acquire) != value {
            std::hint::spin_loop();
        }
    };
    let (mut asked, mut answered) = (0, 0);
    let ask = || {
        line.0.store(asked + 1, Release);
        asked += 2;
        until(asked);
    };
    let answer = || {
        until(answered + 1);
        answered += 2;
        line.0.store(answered, Release);
    };
    time(cores, count, ask, answer)
}

/// A line for each direction.
fn bare_lines(cores: [usize; 2], count: u32) -> f64 {
    let lines = [Line(AtomicU64::new(0)), Line(AtomicU64::new(0))];
    let (mut asked, mut answered) = (0, 0);
    let ask = || {
        asked += 1;
        lines[0].0.store(asked, Release);
        while lines[1].0.load(Acquire) != asked {
            std::hint::spin_loop();
        }
    };
    let answer = || {
        answered += 1;
        while lines[0].0.load(Acquire) != answered {
            std::hint::spin_loop();
        }
        lines[1].0.store(answered, Release);
    };
    time(cores, count, ask, answer)
}

/// Two words of shared memory, with a futex call for each message.
fn bare_futex(cores: [usize; 2], count: u32) -> f64 {
    let side = || {
        let file = memfd::create("bench", 4096).expect("memory");
        let own = Region::map(&file, 0, 4096).expect("a mapping");
        let peer = Region::map_read_only(&file, 0, 4096).expect("a mapping");
        (WordMut::new(&own, 0).expect("inside"), Word::new(&peer, 0).expect("inside"))
    };
    let ((asks, asked), (answers, answered)) = (side(), side());
    let wait = |word: &Word, seen: u32| {
        while word.load(Acquire) == seen {
            futex::wait(word, seen, None).expect("a futex");
        }
    };
    let mut seen = [0u32; 2];
    let [first, second] = &mut seen;
    let ask = || {
        asks.add(1, Release);
        futex::wake(&asks).expect("a futex");
        wait(&answered, *first);
        *first += 1;
    };
    let answer = || {
        wait(&asked, *second);
        *second += 1;
        answers.add(1, Release);
        futex::wake(&answers).expect("a futex");
    };
    time(cores, count, ask, answer)
}

struct Side {
    producer: Producer,
    consumer: Consumer,
    ringer: Ringer,
    sleeper: Sleeper,
}

/// Both sides of a link, in memory files that each side has mapped for itself.
fn sides(mode: Mode) -> [Side; 2] {
    let layout = Layout::with_bulk(64, 8, 0).expect("a layout");
    let len = usize::try_from(layout.bytes()).expect("small");
    let files = [(); 2].map(|()| memfd::create("bench", layout.bytes()).expect("memory"));
    let side = |role: Role, own: usize| {
        let own_extent = Extent::whole(Region::map(&files[own], 0, len).expect("a mapping"));
        let peer = Extent::whole(Region::map_read_only(&files[1 - own], 0, len).expect("a mapping"));
        let epoch = Epoch::new(1).expect("not zero");
        let ends = Ends { role, own: own_extent, peer, layout, epoch, bell: BellKind::Futex };
        Side {
            producer: Producer::at(&ends.own, layout.ring_offset(), layout.slots(), epoch).expect("a ring"),
            consumer: Consumer::at(&ends.peer, layout.ring_offset(), layout.slots(), epoch).expect("a ring"),
            ringer: Ringer::of(&ends).expect("inside"),
            sleeper: Sleeper::of(&ends, mode).expect("inside"),
        }
    };
    [side(Role::Client, 0), side(Role::Server, 1)]
}

impl Side {
    fn send(&mut self, id: u32) {
        self.producer.push(&Message { id, ..Message::default() });
        self.ringer.ring();
    }

    fn receive(&mut self) -> Message {
        loop {
            if let Some(message) = self.consumer.pop() {
                return message;
            }
            assert_eq!(self.sleeper.wait(None, &self.consumer), Outcome::Ready);
        }
    }

    fn spin(&mut self) -> Message {
        loop {
            if let Some(message) = self.consumer.pop() {
                return message;
            }
            std::hint::spin_loop();
        }
    }
}

fn linked(cores: [usize; 2], mode: Mode, count: u32) -> f64 {
    let [mut client, mut server] = sides(mode);
    let mut id = 0;
    let ask = || {
        id += 1;
        client.send(id);
        assert_eq!(client.receive().id, id);
    };
    let answer = || {
        let id = server.receive().id;
        server.send(id);
    };
    time(cores, count, ask, answer)
}

/// The rings alone, with nobody who sleeps.
fn bare_ring(cores: [usize; 2], count: u32) -> f64 {
    spinning(cores, count, || ())
}

/// With what it costs to look whether the peer sleeps.
fn fenced_ring(cores: [usize; 2], count: u32) -> f64 {
    spinning(cores, count, || fence(SeqCst))
}

fn spinning(cores: [usize; 2], count: u32, after: impl Fn() + Send + Sync) -> f64 {
    let [mut client, mut server] = sides(Mode::Poll);
    let asked = AtomicU64::new(0);
    let ask = || {
        let id = asked.fetch_add(1, Relaxed) as u32;
        client.producer.push(&Message { id, ..Message::default() });
        after();
        assert_eq!(client.spin().id, id);
    };
    let answer = || {
        let id = server.spin().id;
        server.producer.push(&Message { id, ..Message::default() });
        after();
    };
    time(cores, count, ask, answer)
}
