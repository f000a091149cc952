//! Connections that break at any byte; sockets that transfer little at a time.

use std::time::Duration;

use tombolo_host_rpc::client::{InFlight, Options, Pending, Reply};
use tombolo_mem::Buffer;

use super::common::*;
use super::script::*;

/// Returns the reply of an honest server.
fn answer(called: &Called) -> Vec<u8> {
    match called.procedure {
        READ => {
            let word = |at: usize| u32::from_be_bytes(called.arguments[at..at + 4].try_into().unwrap());
            called.reply(&data_results(&pattern(word(4), word(0) as usize)))
        }
        WRITE => {
            let len = u32::from_be_bytes(called.arguments[..4].try_into().unwrap()) as usize;
            assert_eq!(called.arguments.len(), 4 + len.next_multiple_of(4));
            called.reply(&written(&called.arguments[4..4 + len]))
        }
        _ => called.reply(&called.arguments),
    }
}

fn outcome(pending: Pending) -> Reply {
    assert!(pending.is_ready());
    pending.wait().expect("a reply")
}

/// The first call and one of each kind, with checks of the outcomes.
struct Mixed {
    first: Pending,
    echo: Pending,
    read: Pending,
    write: Pending,
    buffer: Buffer,
}

const READ_BYTES: usize = 50;
const WRITE_BYTES: usize = 41;

impl Mixed {
    fn make(script: &Script, first: Pending) -> Self {
        let buffer = Buffer::new(READ_BYTES);
        Self {
            first,
            echo: echo(&script.client, ECHO, b"echoed!!"),
            read: read(&script.client, 3, READ_BYTES, &buffer),
            write: write(&script.client, pattern(4, WRITE_BYTES)),
            buffer,
        }
    }

    fn check(mut self) {
        outcome(self.first);
        assert_eq!(outcome(self.echo).results, b"echoed!!");
        let read = outcome(self.read);
        assert_eq!((read.data_bytes, read.results.len()), (READ_BYTES, 8));
        assert!(self.buffer.as_slice().expect("it was let go") == pattern(3, READ_BYTES));
        assert_eq!(outcome(self.write).results, written(&pattern(4, WRITE_BYTES)));
    }
}

#[test]
fn connection_breaks_at_any_sent_byte() {
    for cut in 0.. {
        let (mut script, line, first) = Script::connected(Options::default());
        assert_eq!(line.calls().len(), 1);
        line.set_room(cut);
        let mixed = Mixed::make(&script, first);
        let sent_all = line.sent_bytes() < cut;
        script.close(&line);
        assert!(line.is_shut_down());
        let next = script.reconnected(Duration::from_secs(1));
        let calls = next.calls();
        assert_eq!(calls.iter().map(|call| call.procedure).collect::<Vec<_>>(), [1, ECHO, READ, WRITE]);
        assert_eq!(calls.windows(2).map(|pair| pair[1].xid.wrapping_sub(pair[0].xid)).max(), Some(1));
        for call in calls.iter().rev() {
            script.bring(&next, &answer(call));
        }
        mixed.check();
        assert_eq!(script.client.counts().outstanding, 0);
        if sent_all {
            break;
        }
    }
}

#[test]
fn resent_calls_keep_their_order_and_xids() {
    let options = Options { in_flight: InFlight::Fixed(50), ..Options::default() };
    let (mut script, line, _first) = Script::connected(options);
    let _small: Vec<_> = (0..40).map(|_| echo(&script.client, ECHO, b"small")).collect();
    let _bulk: Vec<_> = (0..40).map(|fill| write(&script.client, vec![fill; 100])).collect();
    let before = line.calls();
    // Every second one is answered.
    for call in before.iter().step_by(2) {
        script.bring(&line, &answer(call));
    }
    script.close(&line);
    let next = script.reconnected(Duration::from_secs(1));
    let left: Vec<_> = before.into_iter().skip(1).step_by(2).collect();
    assert_eq!(next.calls(), left);
}

#[test]
fn reply_over_wrong_connection_is_dropped() {
    let (mut script, line, first) = Script::connected(Options::default());
    let call = line.calls().remove(0);
    script.bring(&line, &framed(&message(7, b"")));
    script.close(&line);
    script.pass(Duration::from_secs(1));
    let next = script.line(1);
    next.set_room(0);
    script.connect(&next);
    let other = write(&script.client, vec![1; 10]);
    script.bring(&next, &framed(&message(call.xid.wrapping_add(1), b"guessed")));
    assert_eq!(script.client.counts().unknown_replies, 2);
    script.take_more(&next, usize::MAX);
    for call in next.calls() {
        script.bring(&next, &answer(&call));
    }
    outcome(first);
    assert_eq!(outcome(other).results, written(&[1; 10]));
}

#[test]
fn connection_breaks_at_any_received_byte() {
    let mut whole = usize::MAX;
    let mut cut = 0;
    while cut <= whole {
        let (mut script, line, first) = Script::connected(Options::default());
        let mixed = Mixed::make(&script, first);
        let replies: Vec<u8> = line.calls().iter().flat_map(answer).collect();
        whole = replies.len();
        script.bring(&line, &replies[..cut]);
        script.close(&line);
        script.pass(Duration::from_secs(1));
        if script.line_count() > 1 {
            let next = script.line(1);
            script.connect(&next);
            for call in next.calls() {
                script.bring(&next, &answer(&call));
            }
        }
        mixed.check();
        cut += 1;
    }
}

#[test]
fn replies_may_come_in_pieces_of_any_size() {
    for at_a_time in 1..300 {
        let (mut script, line, first) = Script::connected(Options::default());
        line.set_at_a_time(at_a_time);
        let mixed = Mixed::make(&script, first);
        let replies: Vec<u8> = line.calls().iter().flat_map(answer).collect();
        for piece in replies.chunks(at_a_time) {
            script.bring(&line, piece);
        }
        mixed.check();
    }
}

#[test]
fn calls_go_out_in_pieces_of_any_size() {
    for room in 1..100 {
        let (mut script, line, first) = Script::connected(Options::default());
        line.set_room(0);
        let mixed = Mixed::make(&script, first);
        for _ in 0..400 {
            script.take_more(&line, room);
        }
        let calls = line.calls();
        assert_eq!(calls.len(), 4);
        for call in &calls {
            script.bring(&line, &answer(call));
        }
        mixed.check();
    }
}

#[test]
fn replies_in_fragments_are_glued() {
    for fragment in [1, 3, 7, 24, 40, 90] {
        let (mut script, line, first) = Script::connected(Options::default());
        let mixed = Mixed::make(&script, first);
        let fragmented = |call| crate::server::common::framed(&answer(call)[4..], fragment);
        let stream: Vec<u8> = line.calls().iter().flat_map(fragmented).collect();
        for piece in stream.chunks(11) {
            script.bring(&line, piece);
        }
        mixed.check();
    }
}

#[test]
fn long_data_land_with_little_copied() {
    let (mut script, line, first) =
        Script::connected(Options { in_flight: InFlight::Fixed(8), ..Options::default() });
    let lens = [1 << 20, 300_000, 5, 1 << 20];
    let mut buffers: Vec<_> = lens.iter().map(|len| Buffer::new(*len)).collect();
    let pending: Vec<_> =
        (0..).zip(&buffers).map(|(fill, buffer)| read(&script.client, fill, buffer.len(), buffer)).collect();
    let replies: Vec<u8> = line.calls().iter().flat_map(answer).collect();
    script.bring(&line, &replies);
    outcome(first);
    for ((fill, pending), buffer) in (0..).zip(pending).zip(&mut buffers) {
        assert_eq!(outcome(pending).data_bytes, buffer.len());
        let len = buffer.len();
        assert!(buffer.as_slice().expect("it was let go") == pattern(fill, len));
    }
    let counts = script.client.counts();
    assert_eq!(counts.landed_bytes + counts.copied_bytes, lens.iter().sum::<usize>() as u64);
    assert!(counts.copied_bytes < 20_000, "{} bytes were copied", counts.copied_bytes);
}

/// Delivers data piece by piece at an interval. Returns the number of turns.
fn turns_for(pieces: usize, piece_bytes: usize, every: Duration) -> u64 {
    let (mut script, line, first) = Script::connected(Options::default());
    let len = pieces * piece_bytes;
    let mut buffer = Buffer::new(len);
    let pending = read(&script.client, 1, len, &buffer);
    let call = line.calls().remove(1);
    let before = script.client.counts().turns;
    for piece in call.reply(&data_results(&pattern(1, len))).chunks(piece_bytes) {
        script.bring(&line, piece);
        script.pass(every);
    }
    let turns = script.client.counts().turns - before;
    assert_eq!(outcome(pending).data_bytes, len);
    assert!(buffer.as_slice().expect("it was let go") == pattern(1, len));
    // The next data are reported at once.
    script.bring(&line, &framed(&message(call.xid.wrapping_sub(1), b"small")));
    assert_eq!(outcome(first).results, b"small");
    turns
}

#[test]
fn low_water_mark_batches_packets() {
    // 1 Gbit/s in pieces of 16 KiB.
    let turns = turns_for(64, 16 << 10, Duration::from_micros(131));
    assert!(turns <= 10, "{turns} turns for a mebibyte");
    // A network so slow that every piece is a sign of life.
    assert_eq!(turns_for(64, 16 << 10, Duration::from_millis(200)), 65);
}
