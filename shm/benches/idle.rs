//! What a consumer costs that nothing is sent to, and how long the first message waits then: `cargo bench -p tombolo-shm`.

#![allow(clippy::print_stdout, reason = "it prints a table")]

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use tombolo_shm::bell::{Mode, Outcome, Ringer, Sleeper};
use tombolo_shm::link::{BellKind, Ends, Layout};
use tombolo_shm::ring::{Consumer, Message, Producer};

const IDLE: Duration = Duration::from_secs(2);
const MESSAGES: u32 = 100;

fn main() {
    println!(
        "{:>10} {:>10} {:>14} {:>10} {:>10} {:>10}",
        "bell", "mode", "processor, %", "p50, us", "p90, us", "max, us"
    );
    for (name, bell, mode) in [
        ("futex", BellKind::Futex, Mode::Event),
        ("futex", BellKind::Futex, Mode::Adaptive),
        ("none", BellKind::Silent, Mode::Event),
        ("none", BellKind::Silent, Mode::Adaptive),
        ("none", BellKind::Silent, Mode::Poll),
    ] {
        let processor = thread::spawn(move || idle(bell, mode)).join().expect("a thread");
        let waits = waits(bell, mode);
        let of = |part: usize| waits[part].as_nanos() as f64 / 1000.0;
        let (p50, p90, max) = (of(waits.len() / 2), of(waits.len() * 9 / 10), of(waits.len() - 1));
        println!("{name:>10} {mode:>10} {processor:>14.3} {p50:>10.1} {p90:>10.1} {max:>10.1}");
    }
}

fn link(bell: BellKind) -> (Ends, Ends) {
    let (mut client, mut server) = Ends::in_memory(Layout::with_bulk(8, 8, 0).expect("a layout"));
    (client.bell, server.bell) = (bell, bell);
    (client, server)
}

fn consumer(ends: &Ends) -> Consumer {
    let offset = ends.layout.ring_offset();
    Consumer::at(&ends.peer, offset, ends.layout.slots(), ends.epoch).expect("a ring")
}

/// Which part of a processor it takes to wait for nothing, in hundredths.
fn idle(bell: BellKind, mode: Mode) -> f64 {
    let (_client, server) = link(bell);
    let mut sleeper = Sleeper::of(&server, mode).expect("inside");
    let (consumer, before, start) = (consumer(&server), processor_time(), Instant::now());
    assert_eq!(sleeper.wait(Some(IDLE), &consumer), Outcome::TimedOut);
    100.0 * (processor_time() - before).as_secs_f64() / start.elapsed().as_secs_f64()
}

/// How long messages wait for a consumer that has been idle, shortest first.
fn waits(bell: BellKind, mode: Mode) -> Vec<Duration> {
    let (client, server) = link(bell);
    let (sender, receiver) = mpsc::channel();
    let taker = thread::spawn(move || {
        let mut sleeper = Sleeper::of(&server, mode).expect("inside");
        let mut consumer = consumer(&server);
        for _ in 0..MESSAGES {
            assert_eq!(sleeper.wait(None, &consumer), Outcome::Ready);
            sender.send(Instant::now()).expect("somebody listens");
            consumer.pop().expect("a message");
        }
    });
    let (offset, slots) = (client.layout.ring_offset(), client.layout.slots());
    let mut producer = Producer::at(&client.own, offset, slots, client.epoch).expect("a ring");
    let ringer = Ringer::of(&client).expect("inside");
    let mut waits: Vec<Duration> = (0..MESSAGES)
        .map(|id| {
            // Long enough that it looks at its longest intervals, and never in step with them.
            thread::sleep(Duration::from_micros(20_000 + u64::from(id) * 137));
            let sent = Instant::now();
            producer.push(&Message { id, ..Message::default() });
            ringer.ring();
            receiver.recv().expect("a time").saturating_duration_since(sent)
        })
        .collect();
    taker.join().expect("a thread");
    waits.sort();
    waits
}

/// What this thread has had of a processor.
fn processor_time() -> Duration {
    let counted = std::fs::read_to_string("/proc/thread-self/schedstat").expect("a kernel that counts");
    let nanos = counted.split(' ').next().and_then(|first| first.parse().ok());
    Duration::from_nanos(nanos.expect("nanoseconds"))
}
