//! Every interleaving of a few steps, and every value that weak memory allows a load to return.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use tombolo_shm::doorbell::WakeReason;
use tombolo_shm::window::Counts;

use crate::world::{Loom, LoomBell, Side, World, message, sides};

/// Explores all interleavings, with at most this number of preemptions.
fn every_interleaving(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.max_branches = 20_000;
    model.check(run);
}

fn look(side: &mut Side<Loom>) -> u32 {
    loop {
        if let Some(found) = side.consumer.pop() {
            assert_eq!(found, message(found.id), "torn");
            return found.id;
        }
        Loom::yield_now();
    }
}

#[test]
fn stamped_messages_are_complete() {
    every_interleaving(3, || {
        let [mut client, mut server] = sides::<Loom>(2);
        let end = Loom::spawn(move || (1..3).for_each(|id| client.producer.push(&message(id))));
        assert_eq!([look(&mut server), look(&mut server)], [1, 2]);
        end();
    });
}

#[test]
fn slots_are_reused_only_after_being_read() {
    every_interleaving(2, || {
        let [mut client, mut server] = sides::<Loom>(1);
        let end = Loom::spawn(move || {
            for id in 1..4 {
                assert_eq!(look(&mut server), id);
                server.producer.push(&message(id));
            }
        });
        for id in 1..4 {
            client.producer.push(&message(id));
            assert_eq!(look(&mut client), id);
        }
        end();
    });
}

fn sleeping_consumer_is_woken<W: World>() {
    let [mut client, mut server] = sides::<W>(2);
    let end = W::spawn(move || {
        client.send(1);
        client.send(2);
    });
    assert_eq!([server.receive(), server.receive()], [1, 2]);
    end();
}

#[test]
fn a_sleeping_consumer_is_woken() {
    every_interleaving(3, sleeping_consumer_is_woken::<Loom>);
    every_interleaving(3, sleeping_consumer_is_woken::<LoomBell>);
}

fn needless_ring<W: World>() {
    let [mut client, mut server] = sides::<W>(1);
    let end = W::spawn(move || {
        (1..3).for_each(|id| {
            assert_eq!(server.receive(), id);
            server.send(id);
        });
    });
    (1..3).for_each(|id| {
        client.send(id);
        assert_eq!(client.receive(), id);
    });
    end();
}

#[test]
fn needless_ring_does_not_disturb_next_sleep() {
    every_interleaving(1, needless_ring::<Loom>);
    every_interleaving(1, needless_ring::<LoomBell>);
}

#[test]
fn two_ringing_threads_leave_no_sleeper() {
    every_interleaving(2, || {
        let [client, mut server] = sides::<Loom>(2);
        let Side { mut producer, ringer, .. } = client;
        let other = Arc::clone(&ringer);
        producer.push(&message(1));
        let first = Loom::spawn(move || other.ring());
        let second = Loom::spawn(move || {
            producer.push(&message(2));
            ringer.ring();
        });
        assert_eq!([server.receive(), server.receive()], [1, 2]);
        first();
        second();
    });
}

#[test]
fn nudge_ends_current_or_next_sleep() {
    every_interleaving(3, || {
        let [_client, mut server] = sides::<Loom>(1);
        let (nudger, told) = (server.sleeper.nudger(), Arc::new(AtomicU32::new(0)));
        let tells = Arc::clone(&told);
        let end = Loom::spawn(move || {
            tells.store(1, Relaxed);
            nudger.nudge();
        });
        assert_eq!(server.sleeper.wait(None, &server.consumer), WakeReason::Nudged);
        assert_eq!(told.load(Relaxed), 1);
        end();
    });
}

/// Polls while another client is answered or polls itself: data validated by a version that holds are
/// current, whatever one client tells the other.
#[test]
fn data_validated_by_a_version_are_current() {
    every_interleaving(3, || {
        let counts = Counts::begin(Loom::lines(4), Loom::lines(1), 9);
        let file = Arc::new(loom::sync::Mutex::new(0));
        let (writer, written) = (counts.clone(), Arc::clone(&file));
        let end = Loom::spawn(move || {
            writer.begun(5);
            *written.lock().expect("not poisoned") = 1;
            writer.ended(5);
        });
        let look = || *file.lock().expect("not poisoned");
        let (version, remembered) = (counts.version(5), look());
        let now = look();
        if version.is_some_and(|version| counts.holds(&version)) {
            assert_eq!(remembered, now, "stale");
        }
        end();
        if version.is_some_and(|version| counts.holds(&version)) {
            assert_eq!(remembered, 1, "stale after the answer");
        }
    });
}

/// Changes two files that share a slot, and everything.
#[test]
fn no_version_exists_during_overlapping_changes() {
    every_interleaving(2, || {
        let counts = Counts::begin(Loom::lines(4), Loom::lines(1), 9);
        let file = Arc::new(loom::sync::Mutex::new(0));
        let ends = [1, 2].map(|_| {
            let (writer, written) = (counts.clone(), Arc::clone(&file));
            Loom::spawn(move || {
                writer.begun(0);
                *written.lock().expect("not poisoned") += 1;
                writer.ended(0);
            })
        });
        let version = counts.version(0);
        let remembered = *file.lock().expect("not poisoned");
        ends.into_iter().for_each(|end| end());
        if version.is_some_and(|version| counts.holds(&version)) {
            assert_eq!(remembered, 2, "stale");
        }
        let version = counts.version(0).expect("nothing under way");
        counts.everything();
        assert!(!counts.holds(&version));
    });
}
