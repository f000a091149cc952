//! The message path allocates no heap memory.

use std::time::Duration;

use tombolo_allocations::of_this_thread;
use tombolo_shm::area::Area;
use tombolo_shm::doorbell::{Mode, Ringer, Sleeper, WakeReason};
use tombolo_shm::link::{Ends, Layout};
use tombolo_shm::ring::{Consumer, Message, Producer};

#[test]
fn message_path_allocates_nothing() {
    let (client, server) = Ends::in_memory(Layout::with_bulk(8, 8, 1 << 20).expect("a layout"));
    let (offset, slots) = (client.layout.ring_offset(), client.layout.slots());
    let mut producer = Producer::at(&client.own, offset, slots, client.epoch).expect("a ring");
    let mut consumer = Consumer::at(&server.peer, offset, slots, server.epoch).expect("a ring");
    let ringer = Ringer::of(&client).expect("inside");
    let mut sleeper = Sleeper::of(&server, Mode::Adaptive).expect("inside");
    let area = Area::new(client.layout.bulk_offset()..client.layout.bytes());

    let before = of_this_thread();
    for id in 0..100 {
        let spans = [1, 100, 4096, 70_000].map(|len| area.take(len).expect("room"));
        producer.push(&Message { id, ..Message::default() });
        ringer.ring();
        assert_eq!(sleeper.wait(None, &consumer), WakeReason::Ready);
        assert_eq!(consumer.pop().map(|message| message.id), Some(id));
        drop(spans);
        assert_eq!(sleeper.wait(Some(Duration::from_micros(100)), &consumer), WakeReason::TimedOut);
    }
    assert_eq!(of_this_thread() - before, 0);
    drop(Vec::<u8>::with_capacity(1));
    assert_eq!(of_this_thread() - before, 1, "they are counted");
}
