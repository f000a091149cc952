//! Calls in datagrams.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use tombolo_host_rpc::server::{Listeners, Options, Server};

use crate::server::common::{
    CLOSE, ECHO, HOLD, LATER, PANIC, SILENT, TestHost, data_call, eventually, numbered,
};

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
    socket
}

fn ask(socket: &UdpSocket, to: SocketAddr, call: &[u8]) -> (Vec<u8>, SocketAddr) {
    socket.send_to(call, to).expect("send");
    receive(socket)
}

fn receive(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut reply = vec![0; 70_000];
    let (len, from) = socket.recv_from(&mut reply).expect("a reply");
    reply.truncate(len);
    (reply, from)
}

#[test]
fn datagrams_of_every_size_are_answered() {
    let host = TestHost::default();
    let (client, to) = (socket(), host.server.udp_addresses()[0]);
    for len in [1, 120, 8192, 8196, 60_000, 65_504] {
        let call = numbered(ECHO, len, len);
        assert!(ask(&client, to, &call).0 == call, "{len} bytes");
    }
    let (reply, _) = ask(&client, to, &data_call(5, 30_001));
    assert_eq!(reply.len(), 8 + 30_004);
    assert!(reply[8..30_009].iter().all(|byte| *byte == 5));
    eventually("all buffers are back", || host.counts().lent_bytes == 0);
}

#[test]
fn datagram_replies_use_the_called_address() {
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let bound = Listeners { tcp: vec![], udp: vec![any] }.bind().expect("bind");
    let server =
        Server::start(bound, Options::default(), &Arc::default() as &Arc<crate::server::common::Player>)
            .expect("start");
    let port = server.udp_addresses()[0].port();
    let client = socket();
    for last in [1, 9] {
        let to = SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), port));
        client.send_to(&[LATER, 50], to).expect("send");
        assert_eq!(ask(&client, to, b"e now"), (b"e now".to_vec(), to));
        assert_eq!(receive(&client), (vec![LATER, 50], to));
    }
}

#[test]
fn unanswered_datagrams_do_not_disturb_others() {
    let host = TestHost::default();
    let (client, to) = (socket(), host.server.udp_addresses()[0]);
    for call in [&b""[..], &[SILENT], &[CLOSE], &[PANIC]] {
        client.send_to(call, to).expect("send");
    }
    // A reply longer than any datagram.
    client.send_to(&data_call(1, 100_000), to).expect("send");
    assert_eq!(ask(&client, to, b"e still here").0, b"e still here");
    host.until("they are counted", |counts| counts.panics == 1 && counts.datagrams_dropped == 1);
    host.server.stop();
}

#[test]
fn datagrams_beyond_a_client_s_limit_are_dropped() {
    let host = TestHost::new(Options { client_calls_max: 4, ..Options::default() });
    let (client, to) = (socket(), host.server.udp_addresses()[0]);
    for number in 0..10 {
        client.send_to(&[HOLD, number], to).expect("send");
    }
    host.until("six are dropped", |counts| counts.datagrams_dropped == 6);
    eventually("four are held", || host.player.held() == 4);
    while host.player.release(true) {}
    let replies: Vec<_> = (0..4).map(|_| receive(&client).0).collect();
    assert_eq!(replies, [3, 2, 1, 0].map(|number| vec![HOLD, number]));
    assert_eq!(ask(&client, to, b"e").0, b"e");
    eventually("all buffers are back", || host.counts().lent_bytes == 0);
}

#[test]
fn datagrams_of_refused_addresses_are_dropped() {
    let admit = Arc::new(|address: std::net::IpAddr| address != Ipv4Addr::new(127, 0, 0, 3));
    let host = TestHost::new(Options { admit: Some(admit), ..Options::default() });
    let to = host.server.udp_addresses()[0];
    let stranger = UdpSocket::bind((Ipv4Addr::new(127, 0, 0, 3), 0)).expect("bind");
    stranger.send_to(b"e", to).expect("send");
    host.until("it is counted", |counts| counts.refused == 1);
    assert_eq!(ask(&socket(), to, b"e").0, b"e");
    assert_eq!(host.counts().calls, 1);
}
