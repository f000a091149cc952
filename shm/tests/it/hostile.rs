//! Reads from a ring whose writer violates the protocol.

use std::sync::atomic::Ordering::{Relaxed, Release};
use std::thread;

use proptest::prelude::*;
use tombolo_mem::{LINE_BYTES, LinesMut, Region};
use tombolo_shm::link::{Epoch, Extent};
use tombolo_shm::ring::{Consumer, Message, Producer};

const SLOTS: u32 = 8;
const EPOCH: u32 = 0x0001_0203;

fn epoch(number: u32) -> Epoch {
    Epoch::new(number).expect("not zero")
}

/// Returns a ring's memory, and its reader.
fn ring() -> (Extent, Consumer) {
    let end = Extent::whole(Region::heap(SLOTS as usize * LINE_BYTES));
    let consumer = Consumer::at(&end, 0, SLOTS, epoch(EPOCH)).expect("a ring");
    (end, consumer)
}

fn producer(end: &Extent, life: u32) -> Producer {
    Producer::at(end, 0, SLOTS, epoch(life)).expect("a ring")
}

fn message(id: u32) -> Message {
    Message { id, frame_len: !id, kind: id ^ 0x5555, body: std::array::from_fn(|at| at as u8 ^ id as u8) }
}

fn set_stamp(end: &Extent, slot: u32, stamp: u32) {
    let at = slot as usize * LINE_BYTES;
    end.region().store_u32(at, stamp.to_le(), Release).expect("inside");
}

#[test]
fn slot_layout_matches_the_format() {
    let (end, _) = ring();
    let mut producer = producer(&end, 0xABCD_0102);
    (0..SLOTS).for_each(|id| producer.push(&message(id)));
    let body = std::array::from_fn(|at| at as u8);
    producer.push(&Message { id: 0x1112_1314, frame_len: 0x2122_2324, kind: 0x3132_3334, body });
    let mut slot = [0; 64];
    end.read_at(0, &mut slot).expect("inside");
    assert_eq!(slot[..4], [0x02, 0x00, 0x02, 0x01], "the second lap, below the epoch's low half");
    assert_eq!(slot[4..16], [0x14, 0x13, 0x12, 0x11, 0x24, 0x23, 0x22, 0x21, 0x34, 0x33, 0x32, 0x31]);
    assert_eq!(slot[16..], body);
}

#[test]
fn messages_arrive_once_in_order_across_stamp_wraparound() {
    let (end, mut consumer) = ring();
    let mut producer = producer(&end, EPOCH);
    let mut id = 0;
    for round in 0..2 * u32::from(u16::MAX) {
        let burst = 1 + round % SLOTS;
        (0..burst).for_each(|n| producer.push(&message(id + n)));
        for _ in 0..burst {
            assert!(consumer.is_ready());
            assert_eq!(consumer.pop(), Some(message(id)));
            id += 1;
        }
        assert!(!consumer.is_ready() && consumer.pop().is_none());
        assert_eq!(consumer.check(), Ok(()));
    }
    assert!(id / SLOTS > u32::from(u16::MAX), "the lap has wrapped");
}

#[test]
fn stamp_of_another_lap_is_reported() {
    for wrong in [-2i32, -3, -100, 1, 2, 100, 0x8000] {
        let (end, mut consumer) = ring();
        let mut producer = producer(&end, EPOCH);
        for id in 0..SLOTS * 5 + 3 {
            producer.push(&message(id));
            assert_eq!(consumer.pop(), Some(message(id)));
        }
        let awaited = EPOCH << 16 | 6;
        let lap = (awaited as u16).wrapping_add(wrong as u16);
        set_stamp(&end, 3, EPOCH << 16 | u32::from(lap));
        assert_eq!(consumer.pop(), None, "{wrong}");
        let fault = consumer.check().expect_err("a lie");
        assert_eq!((fault.slot, fault.awaited), (3, awaited));
        set_stamp(&end, 3, awaited);
        assert!(consumer.check().is_ok() && consumer.pop().is_some());
    }
}

#[test]
fn slots_of_earlier_epochs_are_no_messages() {
    for old in [EPOCH - 1, EPOCH + 1, EPOCH ^ 0x8000, EPOCH << 8, 1] {
        let (end, mut consumer) = ring();
        let mut former = producer(&end, old);
        for id in 0..3 * SLOTS {
            former.push(&message(id));
            assert_eq!(consumer.pop(), None, "{old:#x}");
        }
        assert!(consumer.check().is_err());
    }
}

#[test]
fn a_ring_overrun_is_detected() {
    let (end, mut consumer) = ring();
    let mut producer = producer(&end, EPOCH);
    (0..=SLOTS).for_each(|id| producer.push(&message(id)));
    assert_eq!(consumer.pop(), None, "the first message is gone");
    assert!(consumer.check().is_err());
}

#[test]
fn concurrent_slot_rewrite_yields_a_mix_of_both() {
    let (end, mut consumer) = ring();
    let kinds = [message(1), message(2)];
    let lines = LinesMut::new(end.region(), 0, SLOTS as usize).expect("lines");
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut found = 0;
            while found < 3 * SLOTS {
                let Some(mixed) = consumer.pop() else {
                    let _ = consumer.check();
                    continue;
                };
                found += 1;
                for (at, byte) in mixed.body.iter().enumerate() {
                    assert!([0, kinds[0].body[at], kinds[1].body[at]].contains(byte));
                }
                assert!(kinds.iter().any(|kind| kind.id == mixed.id));
            }
        });
        // Alternating laps of the two, without waiting: each stamp recurs.
        while !reader.is_finished() {
            for lap in 1..4u64 {
                let message = &kinds[lap as usize % 2];
                for slot in 0..SLOTS as usize {
                    let stamp = u64::from(EPOCH << 16) & 0xFFFF_FFFF | lap;
                    lines.store(slot, 0, (stamp | u64::from(message.id) << 32).to_le(), Relaxed);
                    let sizes = u64::from(message.frame_len) | u64::from(message.kind) << 32;
                    lines.store(slot, 1, sizes.to_le(), Relaxed);
                    for (word, bytes) in message.body.as_chunks::<8>().0.iter().enumerate() {
                        lines.store(slot, word + 2, u64::from_ne_bytes(*bytes), Relaxed);
                    }
                }
            }
        }
    });
}

#[test]
fn ring_of_a_truncated_file_is_empty() {
    let file = tombolo_sys::memfd::create("ring", 4096).expect("memory");
    let own = Extent::whole(Region::map(&file, 0, 4096).expect("a mapping"));
    let peer = Extent::whole(Region::map_read_only(&file, 0, 4096).expect("a mapping"));
    let mut producer = producer(&own, EPOCH);
    let mut consumer = Consumer::at(&peer, 0, SLOTS, epoch(EPOCH)).expect("a ring");
    for id in 0..SLOTS + 1 {
        producer.push(&message(id));
        assert_eq!(consumer.pop(), Some(message(id)));
    }
    producer.push(&message(9));
    std::fs::File::from(file).set_len(0).expect("no seal forbids it");
    assert_eq!(consumer.pop(), None);
    assert!(peer.region().is_poisoned() && consumer.check().is_err());
    producer.push(&message(10));
}

#[test]
fn rings_must_be_inside_aligned_and_powers_of_two() {
    let end = Extent::whole(Region::heap(4096));
    for (offset, slots) in [(0, 128), (64, 64), (8, 8), (0, 0), (0, 24), (u64::MAX, 8), (0, 1 << 31)] {
        assert!(Producer::at(&end, offset, slots, epoch(1)).is_err(), "{offset} {slots}");
        assert!(Consumer::at(&end, offset, slots, epoch(1)).is_err(), "{offset} {slots}");
    }
}

proptest! {
    /// Reads arbitrary memory: a slot is a message if it has the awaited stamp, and is returned unchanged.
    #[test]
    fn arbitrary_ring_memory_is_read_safely(
        bytes in proptest::collection::vec(any::<u8>(), SLOTS as usize * LINE_BYTES),
        fits in proptest::collection::vec(proptest::bool::weighted(0.9), SLOTS as usize),
    ) {
        let (end, mut consumer) = ring();
        end.write_at(0, &bytes).expect("inside");
        for (slot, fits) in (0..SLOTS).zip(&fits) {
            set_stamp(&end, slot, if *fits { EPOCH << 16 | 1 } else { EPOCH << 16 | 7 });
        }
        let mut seen = 0;
        while let Some(message) = consumer.pop() {
            let slot = &bytes[seen * LINE_BYTES..][..LINE_BYTES];
            prop_assert_eq!(&message.id.to_le_bytes(), &slot[4..8]);
            prop_assert_eq!(&message.frame_len.to_le_bytes(), &slot[8..12]);
            prop_assert_eq!(&message.kind.to_le_bytes(), &slot[12..16]);
            prop_assert_eq!(&message.body, &slot[16..]);
            seen += 1;
        }
        prop_assert_eq!(seen, fits.iter().position(|fits| !fits).unwrap_or(fits.len()));
        // A whole lap of them leaves the next slot as an honest peer would.
        prop_assert_eq!(consumer.check().is_ok(), seen == fits.len());
    }
}
