//! Ends of connections and servers.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tombolo_host_rpc::server::Options;

use crate::server::common::{
    CLOSE, CLOSE_LATER, Client, HOLD, LATER, PANIC, PANIC_LATER, SILENT, TestHost, eventually, framed,
};

#[test]
fn silent_outcome_keeps_connection_open() {
    let host = TestHost::default();
    let mut client = host.connect();
    client.send(&[SILENT]);
    assert_eq!(client.ask(b"e"), b"e");
}

#[test]
fn closing_sends_first_what_waits() {
    let host = TestHost::default();
    for kind in [CLOSE, CLOSE_LATER] {
        let mut client = host.connect();
        let mut stream: Vec<u8> = (0..20).flat_map(|number| framed(&[b'e', number], 2)).collect();
        stream.extend(framed(&[kind], 1));
        client.0.write_all(&stream).expect("send");
        for number in 0..20 {
            assert_eq!(client.receive(), [b'e', number]);
        }
        // Further input is not read, and does not destroy the replies in transit.
        let _ = client.0.write_all(&[0; 100_000]);
        assert!(client.is_closed());
    }
    host.until("both are closed", |counts| counts.connections == 0);
}

#[test]
fn a_panic_ends_its_connection_and_no_other() {
    let host = TestHost::default();
    let mut other = host.connect();
    for kind in [PANIC, PANIC_LATER] {
        let mut client = host.connect();
        client.send(&[b'e', kind]);
        client.send(&[kind]);
        assert_eq!(client.receive(), [b'e', kind]);
        assert!(client.is_closed());
    }
    assert_eq!(other.ask(b"e"), b"e");
    host.until("they are counted", |counts| counts.panics == 2 && counts.connections == 1);
    host.until("their buffers are back", |counts| counts.lent_bytes == 0);
}

#[test]
fn a_half_closed_connection_still_gets_its_replies() {
    let host = TestHost::default();
    let mut client = host.connect();
    client.send(&[LATER, 50]);
    client.send(b"e");
    client.0.shutdown(Shutdown::Write).expect("shutdown");
    assert_eq!(client.receive(), b"e");
    assert_eq!(client.receive(), [LATER, 50]);
    assert!(client.is_closed());
    // The last bytes of a whole or partial call and the end of the stream may arrive as one event.
    for round in 0..300 {
        let mut client = host.connect();
        let is_whole = round % 2 == 0;
        client.0.write_all(if is_whole { &[0x80, 0, 0, 1, b'e'] } else { &[0x80, 0, 0] }).expect("send");
        client.0.shutdown(Shutdown::Write).expect("shutdown");
        if is_whole {
            assert_eq!(client.receive(), b"e");
        }
        assert!(client.is_closed());
    }
    host.until("all are gone", |counts| counts.connections == 0);
}

#[test]
fn connection_closed_during_calls_leaks_nothing() {
    let host = TestHost::default();
    for _ in 0..20 {
        let mut client = host.connect();
        (0..10).for_each(|number| client.send(&[HOLD, number]));
        eventually("they are held", || host.player.held() == 10);
        drop(client);
        while host.player.release(true) {}
    }
    host.until("they are gone", |counts| counts.connections == 0 && counts.lent_bytes == 0);
    assert_eq!(host.connect().ask(b"e"), b"e");
}

#[test]
fn a_refused_connection_is_closed_at_once() {
    let admit = Arc::new(|address: IpAddr| address != Ipv4Addr::LOCALHOST);
    let host = TestHost::new(Options { admit: Some(admit), ..Options::default() });
    assert!(host.connect().is_closed());
    host.until("it is counted", |counts| counts.refused == 1 && counts.connections_total == 0);
}

#[test]
fn connection_limit_refuses_and_recovers() {
    // Half of them are left to other addresses.
    let host = TestHost::new(Options { connections_max: 6, ..Options::default() });
    let mut clients: Vec<_> = (0..3).map(|_| host.connect()).collect();
    clients.iter_mut().for_each(|client| assert_eq!(client.ask(b"e"), b"e"));
    assert!(host.connect().is_closed());
    clients.pop();
    host.until("there is room", |counts| counts.connections == 2);
    assert_eq!(host.connect().ask(b"e"), b"e");
    assert_eq!(host.counts().refused, 1);
}

#[test]
fn idle_connections_are_closed_unless_they_have_called() {
    let host = TestHost::new(Options { silent_after: Duration::from_secs(1), ..Options::default() });
    let (mut silent, mut useful, mut half) = (host.connect(), host.connect(), host.connect());
    assert_eq!(useful.ask(b"e"), b"e");
    assert_eq!(half.ask(b"e"), b"e");
    half.0.write_all(&[0x80, 0, 0, 9, 1]).expect("send");
    assert!(silent.is_closed());
    assert!(half.is_closed());
    thread::sleep(Duration::from_millis(1300));
    assert_eq!(useful.ask(b"e"), b"e");
    host.until("they are counted", |counts| counts.closed_silent == 2 && counts.lent_bytes == 0);
}

#[test]
fn stopping_lets_calls_end_and_sends_their_replies() {
    let host = TestHost::new(Options { grace: Duration::from_secs(60), ..Options::default() });
    let address = host.server.tcp_addresses()[0];
    let mut clients: Vec<Client> = (0..10).map(|_| host.connect()).collect();
    clients.iter_mut().for_each(|client| client.send(&[LATER, 200]));
    host.until("they have begun", |counts| counts.later == 10);
    let start = Instant::now();
    host.server.stop();
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    for client in &mut clients {
        assert_eq!(client.receive(), [LATER, 200]);
        assert!(client.is_closed());
    }
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn stopping_does_not_wait_for_ever() {
    let host = TestHost::new(Options { grace: Duration::from_millis(100), ..Options::default() });
    let mut client = host.connect();
    client.send(&[HOLD]);
    eventually("it is held", || host.player.held() == 1);
    let start = Instant::now();
    host.server.stop();
    assert!((100..30_000).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    assert!(client.is_closed());
    // A call may outlive its server.
    assert!(host.player.release(true));
}

#[test]
fn idle_server_stops_and_frees_port() {
    let host = TestHost::default();
    let (tcp, udp) = (host.server.tcp_addresses()[0], host.server.udp_addresses()[0]);
    host.server.stop();
    std::net::TcpListener::bind(tcp).expect("the port is free");
    std::net::UdpSocket::bind(udp).expect("the port is free");
}
