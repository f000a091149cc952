//! Sleepers and ringers of real threads, each with its own mapping of the memory.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread;
use std::time::Duration;

use tombolo_mem::Region;
use tombolo_shm::doorbell::{INTERVAL_MAX, Mode, Ringer, Sleeper, WakeReason};
use tombolo_shm::link::{
    DOORBELL_OFFSET, DoorbellKind, Ends, Epoch, Extent, Layout, NOTIFY_FLAG_OFFSET, Role,
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
        Ends { role, own, peer, layout, epoch: Epoch::new(3).expect("not zero"), doorbell }
    };
    [ends(Role::Client, 0), ends(Role::Server, 1)]
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
    for mode in [Mode::Event, Mode::Adaptive] {
        let [client, server] = link(DoorbellKind::Futex);
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
fn timeout_ends_wait_in_every_mode() {
    for doorbell in [DoorbellKind::Futex, DoorbellKind::Silent] {
        for mode in Mode::ALL {
            let [_client, server] = link(doorbell);
            let mut sleeper = Sleeper::of(&server, mode).expect("inside");
            for time in [0, 1, 3000] {
                let waited = sleeper.wait(Some(Duration::from_micros(time)), || false);
                assert_eq!(waited, WakeReason::TimedOut, "{mode} {doorbell:?}");
            }
        }
    }
}

#[test]
fn a_nudge_ends_every_kind_of_wait_once() {
    for doorbell in [DoorbellKind::Futex, DoorbellKind::Silent] {
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
            let waited = sleeper.wait(Some(Duration::ZERO), || false);
            assert_eq!(waited, WakeReason::TimedOut, "{mode} {doorbell:?}");
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
