//! Malicious servers.

use std::time::Duration;

use tombolo_host_rpc::client::{CallError, InvalidReply, Options, Transport};
use tombolo_mem::Buffer;
use tombolo_wire_rpc::{Accepted, AuthStat, Rejected, ReplyHeader, Xid};
use tombolo_wire_xdr::encoded;

use super::common::*;
use super::script::*;

#[test]
fn unmatched_reply_is_only_counted() {
    let (mut script, line, first) = Script::connected(Options::default());
    let call = line.calls().remove(0);
    for xid in [call.xid.wrapping_add(1), 0, u32::MAX] {
        script.bring(&line, &framed(&message(xid, b"no such call")));
        script.bring(&line, &framed(&message(xid, &vec![7; 200_000])));
    }
    // Too short for a transaction id, and empty.
    script.bring(&line, &framed(b"abc"));
    script.bring(&line, &framed(b""));
    assert!(!first.is_ready());
    script.bring(&line, &call.reply(b"right"));
    assert_eq!(first.wait().expect("a reply").results, b"right");
    // A duplicate is one too many.
    script.bring(&line, &call.reply(b"wrong"));
    let counts = script.client.counts();
    assert_eq!((counts.replies, counts.unknown_replies, counts.reconnects), (1, 9, 0));
}

#[test]
fn a_malformed_reply_fails_its_own_call() {
    let refused = Rejected::Auth(AuthStat::TooWeak);
    type Make<'a> = &'a dyn Fn(u32) -> Vec<u8>;
    type Is = fn(&CallError) -> bool;
    let is_malformed: Is =
        |error| matches!(error, CallError::InvalidReply { why: InvalidReply::Header(_), .. });
    let rows: [(Make<'_>, Is); 5] = [
        (&|xid| encoded(&ReplyHeader::reject(Xid(xid), refused)), |error| {
            matches!(error, CallError::Refused { why: Rejected::Auth(AuthStat::TooWeak), .. })
        }),
        (&|xid| encoded(&ReplyHeader::accept(Xid(xid), Accepted::GarbageArgs)), |error| {
            matches!(error, CallError::NotServed { why: Accepted::GarbageArgs, .. })
        }),
        // A call, not a reply.
        (&|xid| [xid.to_be_bytes(), [0; 4], [0; 4]].concat(), is_malformed),
        // Truncated.
        (&|xid| message(xid, b"")[..20].to_vec(), is_malformed),
        (&|xid| xid.to_be_bytes().to_vec(), is_malformed),
    ];
    for (reply, is_right) in rows {
        let (mut script, line, first) = Script::connected(Options::default());
        let after = echo(&script.client, ECHO, b"after");
        let calls = line.calls();
        script.bring(&line, &framed(&reply(calls[0].xid)));
        let error = first.wait().expect_err("no answer");
        assert!(is_right(&error), "{error}");
        script.bring(&line, &calls[1].reply(b"fine"));
        assert_eq!(after.wait().expect("a reply").results, b"fine");
        assert_eq!(script.client.counts().reconnects, 0, "{error}");
    }
}

/// Returns records longer than 10,000 bytes that begin with this word.
fn too_long(word: [u8; 4]) -> [Vec<u8>; 3] {
    let piece = |body: &[u8]| [&(body.len() as u32).to_be_bytes()[..], body].concat();
    let (first, rest) = word.split_at(2);
    [
        [&0xffff_ffff_u32.to_be_bytes()[..], &word, &[7; 100]].concat(),
        // In fragments that add up.
        [piece(&word), piece(&[7; 2500]).repeat(5)].concat(),
        // With the word split across fragments.
        [piece(first), piece(&[]), 0x7fff_ffff_u32.to_be_bytes().to_vec(), rest.to_vec()].concat(),
    ]
}

#[test]
fn oversized_record_fails_its_call_and_resends_others() {
    for (form, at_a_time) in (0..3).flat_map(|form| [(form, usize::MAX), (form, 1)]) {
        let options = Options { reply_bytes_max: 10_000, ..Options::default() };
        let (mut script, line, first) = Script::connected(options);
        let other = echo(&script.client, ECHO, b"other");
        let calls = line.calls();
        line.set_at_a_time(at_a_time);
        script.bring(&line, &too_long(calls[0].xid.to_be_bytes())[form]);
        assert!(first.is_ready());
        let error = first.wait().expect_err("beyond the limit");
        assert!(matches!(error, CallError::InvalidReply { why: InvalidReply::Record(_), .. }), "{error}");
        assert!(line.is_shut_down() && !other.is_ready());
        let next = script.reconnected(Duration::from_millis(100));
        assert_eq!(next.calls(), calls[1..], "the other one is sent again, and no other");
        script.bring(&next, &calls[1].reply(b"fine"));
        assert_eq!(other.wait().expect("a reply").results, b"fine");
        assert_eq!(script.client.counts().garbage, 1);
    }
}

#[test]
fn oversized_record_fails_partly_sent_call() {
    let (mut script, line, _first) = Script::connected(Options::default());
    line.calls();
    line.set_room(1000);
    let pending = write(&script.client, vec![7; 10_000]);
    script.bring(&line, &too_long(0xffff_fff1_u32.to_be_bytes())[0]);
    assert!(pending.is_ready());
    assert!(matches!(pending.wait(), Err(CallError::InvalidReply { why: InvalidReply::Record(_), .. })));
    assert!(line.is_shut_down());
    script.pass(Duration::from_millis(99));
    assert_eq!(script.line_count(), 1, "connecting anew is in no hurry");
}

#[test]
fn reconnect_backs_off_after_malformed_records() {
    let options = Options { reply_bytes_max: 10_000, ..Options::default() };
    let (mut script, line, first) = Script::connected(options);
    let call = line.calls().remove(0);
    script.bring(&line, &call.reply(b"right"));
    first.wait().expect("a reply");
    let second = echo(&script.client, ECHO, b"second");
    let mut line = line;
    // Also behind a valid answer.
    for (attempt, wait_ms) in [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000].into_iter().enumerate() {
        let [whole, pieces, _] = too_long(*b"/1.1");
        script.bring(&line, [&whole, &pieces, &b"HTTP/1.1 400 Bad Request".to_vec()][attempt % 3]);
        assert!(line.is_shut_down() && !second.is_ready());
        script.pass(Duration::from_millis(wait_ms - 1));
        assert_eq!(script.line_count(), attempt + 1, "{wait_ms}");
        script.pass(Duration::from_millis(1));
        line = script.line(attempt + 1);
        script.connect(&line);
        assert_eq!(line.calls().len(), 1, "the call is sent again");
    }
    script.bring(&line, &framed(&message(call.xid.wrapping_add(1), b"at last")));
    assert_eq!(second.wait().expect("a reply").results, b"at last");
}

#[test]
fn unrequested_data_fail_the_call_without_side_effects() {
    let lens: [u32; 4] = [101, 1 << 20, u32::MAX, u32::MAX - 7];
    for len in lens {
        for (whole, extra) in [(true, 0), (true, 300_000), (false, 300_000)] {
            let (mut script, line, _first) = Script::connected(Options::default());
            let mut buffer = Buffer::new(100);
            let pending = read(&script.client, 1, 100, &buffer);
            let after = echo(&script.client, ECHO, b"after");
            let calls = line.calls();
            let results = [&7_u32.to_be_bytes()[..], &len.to_be_bytes(), &vec![9; 100 + extra]].concat();
            let reply = calls[1].reply(&results);
            if whole {
                script.bring(&line, &reply);
            } else {
                reply.chunks(999).for_each(|piece| script.bring(&line, piece));
            }
            let error = pending.wait().expect_err("garbage");
            assert!(
                matches!(error, CallError::InvalidReply { why: InvalidReply::Data { .. }, .. }),
                "{error}"
            );
            assert!(buffer.as_slice().expect("it was let go").iter().all(|byte| *byte == 0));
            script.bring(&line, &calls[2].reply(b"fine"));
            assert_eq!(after.wait().expect("a reply").results, b"fine", "the stream goes on");
        }
    }
}

#[test]
fn truncated_data_are_requested_again_over_new_connection() {
    let (mut script, line, first) = Script::connected(Options::default());
    let mut buffer = Buffer::new(100_000);
    let pending = read(&script.client, 1, 100_000, &buffer);
    let call = line.calls().remove(1);
    let reply = call.reply(&data_results(&pattern(1, 100_000)));
    script.bring(&line, &reply[..50_000]);
    script.close(&line);
    let next = script.reconnected(Duration::from_secs(1));
    assert!(!pending.is_ready() && buffer.as_slice().is_none(), "its memory is still in use");
    assert_eq!(next.calls().len(), 2);
    script.bring(&next, &reply);
    assert_eq!(pending.wait().expect("a reply").data_bytes, 100_000);
    assert!(buffer.as_slice().expect("it was let go") == pattern(1, 100_000));
    drop(first);
}

#[test]
fn early_reply_completes_call_and_stops_its_record() {
    let (mut script, line, _first) = Script::connected(Options::default());
    line.calls();
    line.set_room(1000);
    let pending = write(&script.client, vec![7; 10_000]);
    let xid = 0xffff_fff1;
    script.bring(&line, &framed(&message(xid, b"early")));
    assert_eq!(pending.wait().expect("a reply").results, b"early");
    assert!(line.is_shut_down(), "its memory is its owner's again");
    assert_eq!(line.sent_bytes(), 1000);
}

#[test]
fn datagrams_that_are_no_replies_do_no_harm() {
    let (mut script, line, pending) = Script::connected_over(Transport::Udp, Options::of(Transport::Udp));
    let call = line.calls().remove(0);
    for datagram in [&b""[..], b"a", &[0; 3], &[0xff; 65_507], &message(1, b"x")] {
        script.bring(&line, datagram);
    }
    assert!(!pending.is_ready());
    script.bring(&line, &message(call.xid, b"hello"));
    assert_eq!(pending.wait().expect("a reply").results, b"hello");
}

#[test]
fn long_reply_in_pieces_is_collected() {
    let (mut script, line, first) = Script::connected(Options::default());
    let call = line.calls().remove(0);
    // The reply announces a mebibyte, and contains little of it.
    let reply = call.reply(&pattern(3, 1 << 20));
    script.bring(&line, &reply[..10_000]);
    assert!(!first.is_ready());
    script.bring(&line, &reply[10_000..]);
    assert!(first.wait().expect("a reply").results == pattern(3, 1 << 20));
}
