//! Records are independent of their fragmentation.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use tombolo_host_rpc::server::{Admit, Listeners, Options, Server};

use crate::server::common::{
    Client, ECHO, HOLD, LATER, Player, TestHost, data_call, echoed, eventually, framed, numbered,
};

#[test]
fn calls_are_echoed_singly_and_in_batches() {
    let host = TestHost::default();
    let mut client = host.connect();
    for number in 0..1000 {
        let call = numbered(ECHO, number, 120);
        assert_eq!(client.ask(&call), call);
    }
    let calls: Vec<_> = (0..500).map(|number| numbered(ECHO, number, 120)).collect();
    let stream: Vec<u8> = calls.iter().flat_map(|call| framed(call, 120)).collect();
    client.0.write_all(&stream).expect("send");
    for call in &calls {
        assert_eq!(&client.receive(), call);
    }
    host.until("all is counted", |counts| counts.sent_bytes == 1500 * 124);
    let counts = host.counts();
    assert_eq!((counts.calls, counts.connections, counts.later), (1500, 1, 0));
    assert_eq!(counts.received_bytes, 1500 * 124);
    assert_eq!(counts.lent_bytes, 0, "an idle connection has no buffer");
}

#[test]
fn records_around_buffer_sizes_are_echoed() {
    let host = TestHost::default();
    let mut client = host.connect();
    let bounds =
        [0, 1, 4, 1024, 8192, 16 << 10, 32 << 10, 44 << 10, 64 << 10, 524 << 10, (1 << 20) + (8 << 10)];
    for bound in bounds {
        for len in bound.max(6) - 6..=bound + 6 {
            if len <= (1 << 20) + (8 << 10) {
                let call = numbered(ECHO, len, len);
                assert_eq!(client.ask(&call), echoed(&call), "{len} bytes");
            }
        }
    }
}

#[test]
fn long_records_in_a_row_come_back_in_order() {
    let host = TestHost::default();
    let mut client = host.connect();
    let lens = [33_000, 33_000, 120, 1_048_700, 33_000, 9_000, 120, 120, 200_000, 8_192, 8_193];
    let calls: Vec<_> =
        lens.iter().cycle().take(44).enumerate().map(|(number, len)| numbered(ECHO, number, *len)).collect();
    let mut writer = client.0.try_clone().expect("clone");
    let stream: Vec<u8> = calls.iter().flat_map(|call| framed(call, call.len())).collect();
    let sender = thread::spawn(move || writer.write_all(&stream).expect("send"));
    for call in &calls {
        assert!(client.receive() == echoed(call));
    }
    sender.join().expect("the sender");
    host.until("all buffers are back", |counts| counts.lent_bytes == 0);
}

#[test]
fn tiny_and_empty_fragments_form_same_record() {
    let host = TestHost::default();
    let mut client = host.connect();
    for len in [1, 2, 120, 9_000, 70_000] {
        let call = numbered(ECHO, len, len);
        client.0.write_all(&framed(&call, 1)).expect("send");
        assert_eq!(client.receive(), echoed(&call), "{len} bytes one by one");
    }
    let call = numbered(ECHO, 7, 120);
    let mut stream = Vec::new();
    for byte in &call {
        stream.extend([0; 12]);
        stream.extend([0, 0, 0, 1, *byte]);
    }
    stream.extend([0; 40_000]);
    stream.extend([0x80, 0, 0, 0]);
    client.0.write_all(&stream).expect("send");
    assert_eq!(client.receive(), call);
    assert_eq!(client.ask(&call), call, "and the next in one piece");
}

#[test]
fn record_received_byte_by_byte_is_served() {
    let host = TestHost::default();
    let mut client = host.connect();
    let call = numbered(ECHO, 1, 60);
    for byte in framed(&call, 25) {
        client.0.write_all(&[byte]).expect("send");
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(client.receive(), call);
}

#[test]
fn answers_come_when_they_are_ready() {
    let host = TestHost::default();
    let mut client = host.connect();
    // In one write, so that the server takes them all in one turn.
    let calls = [&[HOLD, 1][..], &[HOLD, 2], &[HOLD, 3], b"e now"];
    let together: Vec<u8> = calls.iter().flat_map(|call| framed(call, call.len())).collect();
    client.0.write_all(&together).expect("send");
    assert_eq!(client.receive(), b"e now");
    eventually("all are held", || host.player.held() == 3);
    for (newest, call) in [(true, 3), (false, 1), (false, 2)] {
        assert!(host.player.release(newest));
        assert_eq!(client.receive(), [HOLD, call]);
    }
    assert_eq!(host.counts().later, 3);
}

#[test]
fn pending_call_retains_its_record() {
    let host = TestHost::default();
    let mut client = host.connect();
    // With its mark and thirty short ones it fills 16 KiB: later data would be received into the same memory.
    let mut slow = numbered(LATER, 3, 12_000);
    slow[1] = 10;
    let short = numbered(ECHO, 4, 142);
    let mut stream = framed(&slow, slow.len());
    stream.extend(framed(&short, 142).repeat(110));
    for _ in 0..20 {
        client.0.write_all(&stream).expect("send");
        let mut replies: Vec<_> = (0..111).map(|_| client.receive()).collect();
        replies.sort_by_key(Vec::len);
        assert!(replies.pop() == Some(echoed(&slow)));
        assert!(replies.iter().all(|reply| *reply == short));
    }
}

#[test]
fn file_data_are_padded_and_buffers_returned() {
    let host = TestHost::default();
    let mut client = host.connect();
    for len in [1, 2, 3, 4, 5, 32 << 10, 1 << 20] {
        let reply = client.ask(&data_call(9, len));
        assert_eq!(reply.len(), 8 + len.next_multiple_of(4));
        assert!(reply[8..8 + len].iter().all(|byte| *byte == 9));
        assert!(reply[8 + len..].iter().all(|byte| *byte == 0), "padding is zero");
    }
    host.until("all buffers are back", |counts| counts.lent_bytes == 0);
}

#[test]
fn oversized_record_mark_closes_only_its_connection() {
    let host = TestHost::default();
    let mut other = host.connect();
    for announced in [0x7fff_ffff_u32, 0xffff_ffff, 0x8010_2001, (1 << 20) + (8 << 10) + 1] {
        let mut client = host.connect();
        client.send(b"e first");
        client.0.write_all(&announced.to_be_bytes()).expect("send");
        client.0.write_all(&[7; 1000]).expect("send");
        assert_eq!(client.receive(), b"e first", "what was asked before is answered");
        assert!(client.is_closed(), "{announced:x}");
    }
    // Two fragments, each of which is short enough.
    let mut client = host.connect();
    client.0.write_all(&[0, 16, 0, 0]).expect("send");
    client.0.write_all(&vec![1; 1 << 20]).expect("send");
    client.0.write_all(&[0, 0, 0x20, 1]).expect("send");
    assert!(client.is_closed());
    assert_eq!(other.ask(b"e still here"), b"e still here");
    host.until("they are counted", |counts| counts.closed_too_long == 5 && counts.connections == 1);
    eventually("their memory is back", || host.counts().lent_bytes == 0);
}

#[test]
fn ipv4_and_ipv6_callers_are_served() {
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    let bound = match (Listeners { tcp: vec![any], udp: vec![any] }).bind() {
        Ok(bound) => bound,
        Err(error) => tombolo_skip::skip!("{error}"),
    };
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = seen.clone();
    let admit: Admit = Arc::new(move |address| {
        noted.lock().unwrap().push(address);
        true
    });
    let options = Options { admit: Some(admit), ..Options::default() };
    let player = Arc::new(Player::default());
    let server = Server::start(bound, options, &player).expect("the server starts");
    for address in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
        let call = numbered(ECHO, 1, 120);
        let mut client = Client::connect((address, server.tcp_addresses()[0].port()).into());
        assert_eq!(client.ask(&call), call);
        let socket = UdpSocket::bind((address, 0)).expect("bind");
        socket.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
        socket.send_to(&call, (address, server.udp_addresses()[0].port())).expect("send");
        let mut reply = [0; 200];
        assert_eq!(socket.recv(&mut reply).expect("a reply"), 120);
        assert_eq!(*seen.lock().unwrap(), [address, address]);
        seen.lock().unwrap().clear();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Random records in random fragments, written in random pieces.
    #[test]
    fn any_records_in_any_fragments_are_the_same_records(
        records in prop::collection::vec((1..60_000usize, 1..20_000usize, any::<bool>()), 1..12),
        writes in prop::collection::vec(1..30_000usize, 1..20),
    ) {
        let host = TestHost::default();
        let mut client = host.connect();
        let calls: Vec<_> =
            records.iter().enumerate().map(|(number, record)| numbered(ECHO, number, record.0)).collect();
        let mut stream = Vec::new();
        for (call, (len, fragment, whole)) in calls.iter().zip(&records) {
            stream.extend(framed(call, if *whole { *len } else { *fragment }));
        }
        let mut writer = client.0.try_clone().expect("clone");
        let sender = thread::spawn(move || {
            let mut rest = &stream[..];
            for len in writes.iter().cycle() {
                let (now, later) = rest.split_at(rest.len().min(*len));
                writer.write_all(now).expect("send");
                rest = later;
                if rest.is_empty() {
                    break;
                }
                thread::yield_now();
            }
        });
        for call in &calls {
            prop_assert!(client.receive() == echoed(call));
        }
        sender.join().expect("the sender");
        host.until("all buffers are back", |counts| counts.lent_bytes == 0);
    }
}
