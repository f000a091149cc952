//! Sleepers and ringers of real threads, each with its own mapping of the memory.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread;
use std::time::{Duration, Instant};

use tombolo_mem::Region;
use tombolo_shm::doorbell::{Bell, BellStream, INTERVAL_MAX, Mode, PollTime, Ringer, Sleeper, WakeReason};
use tombolo_shm::link::{
    DOORBELL_OFFSET, DoorbellKind, Ends, Epoch, Extent, Features, Layout, NOTIFY_FLAG_OFFSET, Role,
};
use tombolo_shm::ring::{Consumer, Message, Producer};

const LONG: Option<Duration> = Some(Duration::from_secs(600));

/// Returns both sides of a link; each maps the other's memory read-only, as two processes do.
fn link(doorbell: DoorbellKind) -> [Ends; 2] {
    let layout = Layout::with_bulk(8, 8, 0).expect("a layout");
    let len = usize::try_from(layout.bytes()).expect("small");
    let files = [(); 2].map(|()| tombolo_sys::memfd::create("doorbells", layout.bytes()).expect("memory"));
    let ends = |role, own: usize| {
        let peer = Extent::whole(Region::map_read_only(&files[1 - own], 0, len).expect("a mapping"));
        let own = Extent::whole(Region::map(&files[own], 0, len).expect("a mapping"));
        let (epoch, features) = (Epoch::new(3).expect("not zero"), Features::empty());
        Ends { role, own, peer, layout, epoch, features, doorbell, bell: None }
    };
    let (client, server) = (ends(Role::Client, 0), ends(Role::Server, 1));
    if doorbell != DoorbellKind::Bell {
        return [client, server];
    }
    let (ours, theirs) = stream();
    [with_bell(client, ours), with_bell(server, theirs)]
}

fn stream() -> (UnixStream, UnixStream) {
    let (one, other) = UnixStream::pair().expect("a pair");
    [&one, &other].iter().for_each(|end| end.set_nonblocking(true).expect("nonblocking"));
    (one, other)
}

fn with_bell(ends: Ends, stream: UnixStream) -> Ends {
    let output = stream.try_clone().expect("a descriptor");
    let stream = Arc::new(BellStream::new(stream.into(), output.into()));
    Ends { bell: Some(Arc::new(Bell::new(stream).expect("a bell"))), ..ends }
}

#[test]
fn sides_with_a_bell_poll_for_longer() {
    let length = |doorbell| PollTime::of(&link(doorbell)[0]).length();
    assert_eq!(length(DoorbellKind::Futex), Duration::from_micros(50));
    let mut time = PollTime::of(&link(DoorbellKind::Bell)[1]);
    assert_eq!((time.length(), time.max()), (Duration::from_micros(500), Duration::from_micros(500)));
    (0..8).for_each(|_| time.slept(false));
    time.slept(true);
    assert_eq!(time.length(), Duration::from_micros(500));
}

fn producer(ends: &Ends) -> Producer {
    let (slots, offset) = (ends.layout.slots(), ends.layout.ring_offset());
    Producer::at(&ends.own, offset, slots, ends.epoch).expect("a ring")
}

fn consumer(ends: &Ends) -> Consumer {
    let (slots, offset) = (ends.layout.slots(), ends.layout.ring_offset());
    Consumer::at(&ends.peer, offset, slots, ends.epoch).expect("a ring")
}

fn word(end: &Extent, offset: u64) -> u32 {
    end.region().load_u32(end.place(offset, 4).expect("inside"), Acquire).expect("inside")
}

fn set_notify_flag(ends: &Ends, value: u32) {
    let at = ends.own.place(NOTIFY_FLAG_OFFSET, 4).expect("inside");
    ends.own.region().store_u32(at, value, Release).expect("ours");
}

/// Waits until the other side announces a sleep other than `known`. Returns its notify flag.
fn until_notify_flag(peer: &Extent, known: u32) -> u32 {
    loop {
        let sleep = word(peer, NOTIFY_FLAG_OFFSET);
        if sleep % 2 == 1 && sleep != known {
            return sleep;
        }
        thread::yield_now();
    }
}

#[test]
fn a_sleeper_in_another_mapping_is_woken() {
    let kinds = [DoorbellKind::Futex, DoorbellKind::Bell];
    for (mode, kind) in kinds.into_iter().flat_map(|kind| [(Mode::Event, kind), (Mode::Adaptive, kind)]) {
        let [client, server] = link(kind);
        let taken = AtomicU32::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut consumer = consumer(&server);
                let mut sleeper = Sleeper::of(&server, mode).expect("inside");
                for id in 0..100 {
                    assert_eq!(sleeper.wait(LONG, &consumer), WakeReason::Ready);
                    assert_eq!(consumer.pop().map(|message| message.id), Some(id));
                    taken.store(id + 1, Release);
                }
                assert!(mode == Mode::Adaptive || sleeper.counts().sleeps >= 100);
            });
            let (mut producer, ringer) = (producer(&client), Ringer::of(&client).expect("inside"));
            let mut sleep = 0;
            for id in 0..100 {
                if mode == Mode::Event {
                    sleep = until_notify_flag(&client.peer, sleep);
                }
                producer.push(&Message { id, ..Message::default() });
                ringer.ring();
                while taken.load(Acquire) <= id {
                    thread::yield_now();
                }
            }
            assert!(ringer.rings() <= 100, "{}", ringer.rings());
        });
    }
}

#[test]
fn awake_consumer_is_not_rung_sleeper_once() {
    let [client, server] = link(DoorbellKind::Futex);
    let ringer = Ringer::of(&client).expect("inside");
    (0..1000).for_each(|_| ringer.ring());
    assert_eq!((ringer.rings(), word(&client.own, DOORBELL_OFFSET)), (0, 0));
    for sleep in [1, 3, 5] {
        set_notify_flag(&server, sleep);
        (0..1000).for_each(|_| ringer.ring());
    }
    assert_eq!((ringer.rings(), word(&client.own, DOORBELL_OFFSET)), (3, 3));
    set_notify_flag(&server, 6);
    ringer.ring();
    assert_eq!(ringer.rings(), 3);
}

#[test]
fn without_a_doorbell_a_sleeper_polls_at_intervals() {
    let [client, server] = link(DoorbellKind::Silent);
    let ringer = Ringer::of(&client).expect("inside");
    let mut sleeper = Sleeper::of(&server, Mode::Adaptive).expect("inside");
    let mut consumer = consumer(&server);
    let time = Duration::from_millis(300);
    assert_eq!(sleeper.wait(Some(time), &consumer), WakeReason::TimedOut);
    let sleeps = sleeper.counts().sleeps;
    assert!(sleeps > 3, "{sleeps}");
    // Seven short sleeps before the maximum interval is reached.
    assert!(sleeps <= 8 + (time.as_nanos() / INTERVAL_MAX.as_nanos()) as u64, "{sleeps}");
    thread::scope(|scope| {
        scope.spawn(|| assert_eq!(sleeper.wait(LONG, &consumer), WakeReason::Ready));
        producer(&client).push(&Message::default());
        set_notify_flag(&server, 7);
        ringer.ring();
    });
    assert!(consumer.pop().is_some());
    assert_eq!((ringer.rings(), word(&client.own, DOORBELL_OFFSET)), (0, 0));
}

#[test]
fn an_idle_sleeper_does_not_wake_up_by_itself() {
    for mode in [Mode::Event, Mode::Adaptive] {
        let [_client, server] = link(DoorbellKind::Futex);
        let mut sleeper = Sleeper::of(&server, mode).expect("inside");
        let waited = sleeper.wait(Some(Duration::from_millis(200)), || false);
        assert_eq!(waited, WakeReason::TimedOut, "{mode}");
        // More only if signals or spurious wake-ups occur.
        assert!(sleeper.counts().sleeps < 5, "{mode}");
    }
}

#[test]
fn time_or_one_nudge_ends_every_wait() {
    for doorbell in DoorbellKind::ALL {
        for mode in Mode::ALL {
            let [_client, server] = link(doorbell);
            let mut sleeper = Sleeper::of(&server, mode).expect("inside");
            let nudger = sleeper.nudger();
            for _ in 0..20 {
                thread::scope(|scope| {
                    scope.spawn(|| nudger.nudge());
                    assert_eq!(sleeper.wait(LONG, || false), WakeReason::Nudged, "{mode} {doorbell:?}");
                });
            }
            for time in [0, 1, 3000] {
                let waited = sleeper.wait(Some(Duration::from_micros(time)), || false);
                assert_eq!(waited, WakeReason::TimedOut, "{mode} {doorbell:?}");
            }
        }
    }
}

#[test]
fn sleeper_without_peer_memory_does_not_spin() {
    let file = tombolo_sys::memfd::create("gone", 4096).expect("memory");
    let [_client, mut server] = link(DoorbellKind::Futex);
    server.peer = Extent::whole(Region::map_read_only(&file, 0, 4096).expect("a mapping"));
    std::fs::File::from(file).set_len(0).expect("no seal forbids it");
    let mut sleeper = Sleeper::of(&server, Mode::Event).expect("inside");
    let waited = sleeper.wait(Some(Duration::from_millis(100)), || false);
    assert_eq!(waited, WakeReason::TimedOut);
    assert!(sleeper.counts().sleeps < 100, "{:?}", sleeper.counts());
    // Nor does ringing for it.
    let ringer = Ringer::of(&server).expect("inside");
    ringer.ring();
    assert_eq!(ringer.rings(), 0);
}

#[test]
fn successor_sleeper_is_woken_like_the_first() {
    let [client, server] = link(DoorbellKind::Futex);
    let ringer = Ringer::of(&client).expect("inside");
    let mut producer = producer(&client);
    let mut consumer = consumer(&server);
    let mut sleep = 0;
    for _ in 0..10 {
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut sleeper = Sleeper::of(&server, Mode::Event).expect("inside");
                assert_eq!(sleeper.wait(LONG, &consumer), WakeReason::Ready);
                assert!(consumer.pop().is_some());
            });
            sleep = until_notify_flag(&client.peer, sleep);
            producer.push(&Message::default());
            ringer.ring();
        });
    }
    assert_eq!(ringer.rings(), 10);
}

#[test]
fn bell_rings_one_byte_per_sleep() {
    let [client, server] = link(DoorbellKind::Silent);
    let (ours, mut theirs) = stream();
    let client = with_bell(Ends { doorbell: DoorbellKind::Bell, ..client }, ours);
    let ringer = Ringer::of(&client).expect("inside");
    let mut bytes = [0; 8];
    ringer.ring();
    assert!(theirs.read(&mut bytes).is_err(), "nobody sleeps");
    for sleep in [1, 3] {
        set_notify_flag(&server, sleep);
        (0..100).for_each(|_| ringer.ring());
        assert_eq!(theirs.read(&mut bytes).expect("a ring"), 1);
    }
    // A peer that reads nothing does not stop the ringer.
    while theirs.write(&[0; 4096]).is_ok() {}
    for sleep in 0..100_000 {
        set_notify_flag(&server, sleep * 2 + 5);
        ringer.ring();
    }
}

/// Returns the time that the server's sleeper takes to find each of two messages whose rings are lost.
fn lost_rings(server: &Ends, client: &Ends) -> [Duration; 2] {
    let (mut producer, mut consumer) = (producer(client), consumer(server));
    let ringer = Ringer::of(client).expect("inside");
    let mut sleeper = Sleeper::of(server, Mode::Event).expect("inside");
    let mut sleep = 0;
    [(); 2].map(|()| {
        thread::scope(|scope| {
            scope.spawn(|| {
                sleep = until_notify_flag(&client.peer, sleep);
                producer.push(&Message::default());
                ringer.ring();
            });
            let begin = Instant::now();
            assert_eq!(sleeper.wait(Some(Duration::from_secs(10)), &consumer), WakeReason::Ready);
            assert!(consumer.pop().is_some());
            begin.elapsed()
        })
    })
}

#[test]
fn lost_rings_delay_only_the_first_message() {
    let [client, server] = link(DoorbellKind::Silent);
    let belled = |ends, stream| with_bell(Ends { doorbell: DoorbellKind::Bell, ..ends }, stream);
    let ((to_nobody, _kept), (from_nobody, _also_kept)) = (stream(), stream());
    let [first, second] = lost_rings(&belled(server, from_nobody), &belled(client, to_nobody));
    assert!(first >= Duration::from_millis(50), "the bell is trusted at first: {first:?}");
    assert!(second < first && first < Duration::from_secs(8), "{first:?}, then {second:?}");
}

#[test]
fn ended_stream_leaves_polling_at_intervals() {
    let [client, server] = link(DoorbellKind::Bell);
    // The other end is closed.
    let server = with_bell(server, stream().0);
    let mut sleeper = Sleeper::of(&server, Mode::Event).expect("inside");
    assert_eq!(sleeper.wait(Some(Duration::from_millis(200)), || false), WakeReason::TimedOut);
    assert!(sleeper.counts().sleeps < 10, "{:?}", sleeper.counts());
    let [_, second] = lost_rings(&server, &client);
    assert!(second < Duration::from_secs(1), "{second:?}");
}

/// A peer that rings without end, and changes its doorbell too, wakes the other side a bounded number of
/// times. The peer rings before each sleep, so that the count does not depend on when its thread runs.
#[test]
fn endless_rings_are_ignored_messages_are_not() {
    let [client, server] = link(DoorbellKind::Silent);
    let (ours, theirs) = stream();
    let server = with_bell(Ends { doorbell: DoorbellKind::Bell, ..server }, ours);
    let mut sleeper = Sleeper::of(&server, Mode::Event).expect("inside");
    let mut consumer = consumer(&server);
    let at = client.own.place(DOORBELL_OFFSET, 4).expect("inside");
    let mut rings = 0;
    let ring = || {
        // A full stream holds rings enough.
        let _ = (&theirs).write(&[0; 64]);
        rings += 1;
        client.own.region().store_u32(at, rings, Release).expect("ours");
        false
    };
    assert_eq!(sleeper.wait(Some(Duration::from_millis(500)), ring), WakeReason::TimedOut);
    // Without a limit some hundred thousand; one sleep per interval of 5 ms is left.
    assert!(sleeper.counts().sleeps < 200, "{:?}", sleeper.counts());
    producer(&client).push(&Message::default());
    assert_eq!(sleeper.wait(Some(Duration::from_secs(20)), &consumer), WakeReason::Ready);
    assert!(consumer.pop().is_some());
}
